"""Optional middleware: tracing (`otel`), metrics (`prometheus`), error tracking (`sentry`). Each needs its extra."""
