"""Arguments and results come out as they went in, or are refused with the parameter's name."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import core_schema

from aaiclick_queue.codec import Signature, decode_json, encode_json
from aaiclick_queue.errors import ArgumentsDoNotFit, BadTask, ResultDoesNotEncode

Item = TypeVar("Item")


class Word(str):
    __slots__ = ()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Planet(enum.Enum):
    EARTH = (5.97e24, 6.4e6)
    MARS = (6.4e23, 3.4e6)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Point3(Point):
    z: float = 0.0


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Positive:
    n: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class Box(Generic[Item]):
    item: Item


@dataclasses.dataclass
class Doubling:
    n: int

    def __post_init__(self) -> None:
        self.n *= 2


@dataclasses.dataclass
class Holder:
    where: Path
    at: datetime
    anything: Any = None


class Order(msgspec.Struct):
    id: UUID
    total: Decimal
    note: str | None = None


class Camel(msgspec.Struct, rename="camel"):
    first_name: str


class Pair(NamedTuple):
    left: int
    right: str


class Address(TypedDict):
    street: str
    since: date


class User(pydantic.BaseModel):
    name: str
    born: date
    tags: set[str] = set()


class Admin(User):
    level: int = 1


class Aliased(pydantic.BaseModel):
    at: datetime = pydantic.Field(validation_alias="When", serialization_alias="moment")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def year(self) -> int:
        return self.at.year


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr
    pins: list[pydantic.SecretBytes] = []


class Hidden(pydantic.BaseModel):
    token: str = pydantic.Field("none", exclude=True)


class Open(pydantic.BaseModel, extra="allow"):
    pass


class Handle:
    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            core_schema.no_info_plain_validator_function(cls),
            core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda handle: handle.number),
        )


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


@pydantic.dataclasses.dataclass
class Checked:
    n: int
    raw: bytes = b""

    @pydantic.field_validator("n")
    @classmethod
    def _small(cls, n: int) -> int:
        if n >= 10:
            raise ValueError("give less than 10")
        return n


OrderId = NewType("OrderId", int)
PARIS = ZoneInfo("Europe/Paris")
SEND = "tests.words.test_codec.send"


def taking(annotation: Any) -> Signature:
    """The signature of a function with one parameter `x` of that annotation."""

    def function(x): ...  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202

    function.__annotations__ = {"x": annotation}
    return Signature.of(function)


def returning(annotation: Any) -> Signature:
    def function(): ...  # type: ignore[no-untyped-def] # noqa: ANN202

    function.__annotations__ = {"return": annotation}
    return Signature.of(function)


def send(to: str, n: int = 1, *, at: datetime | None = None) -> None: ...


def through(annotation: Any, value: Any) -> Any:
    signature = taking(annotation)
    return signature.decode(signature.encode((), {"x": value}))["x"]


def refused(annotation: Any, value: Any) -> str:
    with pytest.raises(ArgumentsDoNotFit) as caught:
        taking(annotation).encode((), {"x": value})
    assert caught.value.parameter == "x"
    assert "parameter 'x'" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, 'ü ☃ 𝄞 \\u0000 \x01 "'),
        (int, 10**199),
        (int, -(10**199)),
        (int, 2**64),
        (float, 1e308),
        (float, 5e-324),
        (bool, True),
        (bytes, bytes(range(256))),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("0.10000000000000000000000000000000001")),
        (Decimal, Decimal("1.10")),
        (datetime, datetime(2024, 5, 6, 7, 8, 9, 123456)),  # noqa: DTZ001 - naive is what is tested
        (datetime, datetime(2024, 5, 6, 7, 8, 9, 1, tzinfo=UTC)),
        (datetime, datetime(2024, 5, 6, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
        (date, date(1, 1, 1)),
        (time, time(23, 59, 59, 999999)),
        (time, time(1, 2, tzinfo=UTC)),
        (timedelta, timedelta(days=-400, microseconds=3)),
        (Colour, Colour.BLUE),
        (Size, Size.LARGE),
        (Planet, Planet.MARS),
        (Rights, Rights.READ | Rights.WRITE),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[int, str], {1: "a", -5: "b"}),
        (dict[date, float], {date(2024, 1, 1): 1.0}),
        (dict[UUID, list[int]], {UUID(int=1): [1, 2]}),
        (set[int], {1, 2, 3}),
        (frozenset[date], frozenset({date(2024, 1, 1)})),
        (tuple[int, str, datetime], (1, "a", datetime(2024, 1, 1, tzinfo=UTC))),
        (tuple[int, ...], (1, 2, 3)),
        (Pair, Pair(1, "a")),
        (list[Pair], [Pair(1, "a")]),
        (Address, {"street": "Hauptstraße 1", "since": date(2020, 2, 29)}),
        (Point, Point(1, 2.0)),
        (list[Point], [Point(1), Point(2)]),
        (Tree, Tree("a", [Tree("b"), Tree("c", [Tree("d")])])),
        (Order, Order(UUID(int=3), Decimal("9.90"))),
        (Camel, Camel("Ada")),
        (User, User(name="Ada", born=date(1815, 12, 10), tags={"x"})),
        (User | None, None),
        (dict[str, User], {"a": User(name="Ada", born=date(1815, 12, 10))}),
        (Checked, Checked(3, b"abc")),
        (Positive, Positive(1)),
        (Box[Annotated[int, pydantic.Field(gt=0)]], Box(1)),
        (Aliased, Aliased(When=datetime(2024, 1, 1, tzinfo=UTC))),  # type: ignore[call-arg]
        (Holder, Holder(Path("a/b"), datetime(2024, 1, 1, tzinfo=UTC), {"a": [1, None]})),
        (Path, Path("/tmp/x")),
        (Annotated[int, pydantic.Field(gt=0)], 1),
        (Annotated[bytes, pydantic.Field(max_length=3)], b"abc"),
        (Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], Dog()),
        (pydantic.AwareDatetime, datetime(2024, 1, 1, tzinfo=UTC)),
        (list[pydantic.HttpUrl], [pydantic.HttpUrl("https://example.org/a")]),
        (Annotated[int, msgspec.Meta(gt=0)], 1),
        (Annotated[str, "a remark"], "a"),
        (Annotated[datetime | str, "a remark"], "2024-01-01T00:00:00"),
        (OrderId, 5),
        (Literal["a", 1] | None, "a"),
        (Literal[Colour.RED], Colour.RED),
        (Optional[int], None),  # noqa: UP045 - the old way of writing it
        (Union[int, str], "1"),  # noqa: UP007
        (int | float, 1e16),
        (int | float, 10**16),
        (int | None, 0),
        (object, {"a": 1}),
        (list, [1, "a", None, {"b": 2.5}]),
        (Sequence[int], [1]),
        (Iterable[str], ["a"]),
        (Mapping[str, date], {"a": date(2024, 1, 1)}),
    ],
    ids=repr,
)
def test_a_typed_argument_comes_out_as_itself(annotation: Any, value: Any) -> None:
    got = through(annotation, value)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (datetime | str, [datetime(2024, 1, 1, tzinfo=UTC), "hello", "2024-01-01T00:00:00Z"]),
        (str | bytes | None, ["abcd", b"abcd", None]),
        (Point | Point3, [Point(1), Point3(1)]),
        (Point | Order, [Point(1), Order(UUID(int=1), Decimal(1))]),
        (Cat | Dog | int, [Cat(), Dog(), 5]),
        (User | Admin, [User(name="a", born=date(2000, 1, 1)), Admin(name="a", born=date(2000, 1, 1))]),
        (list[int] | set[int], [[1], {1}]),
        (dict[str, Any] | Point, [{"x": 1}, {"$as": "Point", "value": {"x": 1}}, Point(1)]),
        (UUID | str, [UUID(int=1), str(UUID(int=1))]),
        (Colour | str, [Colour.RED, "red", "other"]),
        (Decimal | float | str, [Decimal("1.0"), 1.0, "1.0"]),
        (Path | str, [Path("a"), "a"]),
        (Planet | str, [Planet.EARTH, "EARTH"]),
    ],
    ids=repr,
)
def test_a_value_of_a_union_comes_out_as_the_member_it_was(annotation: Any, values: list[Any]) -> None:
    for one in values:
        got = through(annotation, one)
        assert (type(got), got) == (type(one), one)
    inside = through(list[annotation], values)
    assert [(type(got), got) for got in inside] == [(type(one), one) for one in values]


def test_a_value_of_a_union_is_written_plainly_where_that_is_enough() -> None:
    signature = taking(str | datetime | None)
    assert signature.encode((), {"x": datetime(2024, 1, 1, tzinfo=UTC)}) == '{"x":"2024-01-01T00:00:00Z"}'
    assert signature.encode((), {"x": "hello"}) == '{"x":"hello"}'
    assert signature.encode((), {"x": None}) == '{"x":null}'
    assert signature.encode((), {"x": "2024-01-01T00:00:00Z"}) == '{"x":{"$as":"str","value":"2024-01-01T00:00:00Z"}}'


# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**200), 10**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


def types_of(value: Any) -> Any:
    """The shape of a JSON value, because 1, 1.0 and True are equal."""
    if isinstance(value, list):
        return [types_of(one) for one in value]
    return {key: types_of(one) for key, one in value.items()} if isinstance(value, dict) else type(value)


@UNHURRIED
@given(JSON)
def test_any_json_value_round_trips_through_an_unannotated_parameter(value: Any) -> None:
    for got in (through(Any, value), decode_json(encode_json(value))):
        assert got == value
        assert types_of(got) == types_of(value)


@UNHURRIED
@given(JSON)
def test_python_s_own_json_reads_what_is_written_as_the_same_value(value: Any) -> None:
    got = json.loads(encode_json(value))
    assert got == value
    assert types_of(got) == types_of(value)


TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (datetime, st.datetimes(timezones=st.just(UTC) | st.none())),
    (timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False)),
    (bytes, st.binary()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (dict[int, Decimal | None], st.dictionaries(st.integers(), st.none() | st.decimals(allow_nan=False))),
    (set[time], st.sets(st.times())),
    (str | bytes | datetime | int, TEXT | st.binary()),
]


@pytest.mark.parametrize(("annotation", "values"), TYPED, ids=[str(annotation) for annotation, _ in TYPED])
@UNHURRIED
@given(data=st.data())
def test_every_value_of_a_type_round_trips(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    got = through(annotation, value)
    assert (type(got), got) == (type(value), value)


def test_an_aware_datetime_keeps_its_offset_in_the_hour_that_a_clock_change_repeats() -> None:
    for fold, hours in ((0, 2), (1, 1)):
        sent = datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=PARIS)
        got = through(datetime, sent)
        assert (got.utcoffset(), got.replace(tzinfo=None)) == (timedelta(hours=hours), datetime(2024, 10, 27, 2, 30))  # noqa: DTZ001


def test_a_datetime_whose_offset_has_seconds_is_refused_instead_of_rounded() -> None:
    assert "does not carry unchanged" in refused(
        datetime, datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=561)))
    )


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1.0),
        (bool, 1),
        (str, 1),
        (str, b"a"),
        (str, None),
        (str, UUID(int=1)),
        (bytes, "YQ=="),
        (float, "1.5"),
        (Decimal, 0.1),
        (Decimal, "0.1"),
        (datetime, "2024-01-01T00:00:00Z"),
        (datetime, date(2024, 1, 1)),
        (date, datetime(2024, 1, 1, tzinfo=UTC)),
        (timedelta, 5),
        (UUID, str(UUID(int=1))),
        (Colour, "green"),
        (Colour, Size.SMALL),
        (Planet, (1, 2)),
        (Rights, "READ"),
        (Literal["a"], "b"),
        (list[int], ["1"]),
        (list[int], "abc"),
        (dict[int, str], {"1": "a"}),
        (tuple[int, str], (1, "a", 2)),
        (Point, Point("1")),  # type: ignore[arg-type]
        (Point, Point3(1)),
        (Point, {"x": 1, "z": 3}),
        (list[Point], [{"x": 1, "z": 3}]),
        (Order, {"id": UUID(int=1), "total": Decimal(1), "nte": "a"}),
        (Camel, {"first_name": "Ada"}),
        (Address, {"street": "a"}),
        (Address, {"street": "a", "since": date(2024, 1, 1), "city": "b"}),
        (Pair, Pair("1", "a")),  # type: ignore[arg-type]
        (User, {"name": "Ada"}),
        (User, "Ada"),
        (User, Admin(name="Ada", born=date(2000, 1, 1))),
        (User, User.model_construct(name=1, born=date(2000, 1, 1))),
        (Checked, {"n": 10}),
        (Positive, {"n": 0}),
        (Box[Annotated[int, pydantic.Field(gt=0)]], {"item": 0}),
        (Annotated[int, pydantic.Field(gt=0)], 0),
        (Annotated[int, pydantic.Field(gt=0)], "1"),
        (Annotated[int, msgspec.Meta(gt=0)], 0),
        (Annotated[dict[str, int], pydantic.Field(min_length=1)], {"a": "1"}),
        (pydantic.AwareDatetime, datetime(2024, 1, 1)),  # noqa: DTZ001
        (Path, "a"),
        (Path | int, "a"),
        (datetime | str, 5),
        (socket.socket, 5),
        (dict, {1: "a", "1": "b"}),
        (set, {Size.SMALL}),
        (dict[int | str, str], {1: "a", "1": "b"}),
        (Doubling, Doubling(3)),
        (Hidden, Hidden(token="a")),
        (Open, Open(at=date(2024, 1, 1))),  # type: ignore[call-arg]
        (Holder, Holder(Path("a"), datetime(2024, 1, 1, tzinfo=UTC), (1, 2))),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_refused_with_the_parameter_s_name(annotation: Any, value: Any) -> None:
    refused(annotation, value)


def test_a_value_is_taken_as_what_the_annotation_says() -> None:
    taken = [
        (float, 1, 1.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (Colour, "red", Colour.RED),
        (Size, 2, Size.LARGE),
        (str, enum.StrEnum("Word", ["A"]).A, "a"),  # type: ignore[attr-defined]
        (str, Word("a"), "a"),
        (int, Size.LARGE, 2),
        (Point, {"x": 1}, Point(1)),
        (Camel, {"firstName": "Ada"}, Camel("Ada")),
        (User, {"name": "Ada", "born": "1815-12-10"}, User(name="Ada", born=date(1815, 12, 10))),
        (Aliased, {"When": "2024-01-01T00:00:00Z"}, Aliased(When=datetime(2024, 1, 1, tzinfo=UTC))),  # type: ignore[call-arg]
        (tuple[int, ...], [1], (1,)),
        (Sequence[int], (1,), [1]),
    ]
    for annotation, sent, expected in taken:
        got = through(annotation, sent)
        assert (type(got), got) == (type(expected), expected)


@pytest.mark.parametrize("annotation", [Any, object, dict, dict[str, Any]], ids=repr)
@pytest.mark.parametrize(
    "value",
    [datetime(2024, 1, 1, tzinfo=UTC), UUID(int=1), Decimal(1), b"a", (1, 2), {1}, Colour.RED, Size.SMALL, Point(1),
     Order(UUID(int=1), Decimal(1)), User(name="a", born=date(2000, 1, 1)), {1: "a"}],
    ids=repr,
)  # fmt: skip
def test_a_type_that_json_does_not_have_is_refused_where_no_annotation_names_it(annotation: Any, value: Any) -> None:
    assert "annotate it" in refused(annotation, {"deep": [value]})


def test_the_sentence_for_an_unannotated_value_says_where_it_is_and_what_to_do() -> None:
    message = refused(Any, {"rows": [{"made": date(2024, 1, 1)}]})
    assert message.endswith("rows[0].made is a date that would arrive as a str: annotate it with its type")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("annotation", [float, float | None, Any, list[float | None], dict[str, Any], Point], ids=repr)
def test_nan_and_the_infinities_are_refused_by_name(annotation: Any, number: float) -> None:
    inside: dict[Any, Any] = {
        list[float | None]: [None, number],
        dict[str, Any]: {"a": number},
        Point: Point(1, number),
    }
    assert "NaN or an infinity" in refused(annotation, inside.get(annotation, number))


def test_the_word_null_in_a_text_beside_a_none_passes() -> None:
    assert through(list[str | None], ["null", None]) == ["null", None]


@pytest.mark.parametrize("annotation", [str, Any, list[str], dict[str, str], User, str | bytes], ids=repr)
def test_the_character_nul_is_refused_by_name_and_its_escape_written_by_hand_passes(annotation: Any) -> None:
    def holding(text: str) -> Any:
        if annotation is User:
            return User(name=text, born=date(2000, 1, 1))
        return {list[str]: [text], dict[str, str]: {text: "a"}}.get(annotation, text)

    for text in ("\0", "a\0b", "\\\0", "\\\\\0"):
        assert "U+0000" in refused(annotation, holding(text))
    for text in ("\\u0000", "\\\\u0000", "a\\\\\\u0000", "\\\\u0000\\"):
        assert through(annotation, holding(text)) == holding(text)


@pytest.mark.parametrize("annotation", [str, Any, User], ids=repr)
def test_a_lone_surrogate_is_refused_by_name(annotation: Any) -> None:
    text = "a\ud800"
    assert "surrogate" in refused(
        annotation, User.model_construct(name=text, born=date(2000, 1, 1)) if annotation is User else text
    )


def test_a_list_that_contains_itself_is_refused_and_crashes_nothing() -> None:
    itself: list[Any] = []
    itself.append(itself)
    tree = Tree("a")
    tree.children.append(tree)
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    for annotation, value in ((Any, itself), (list[Any], itself), (Tree, tree), (Any, deep)):
        assert "contains itself" in refused(annotation, value)
    for value in (itself, tree, deep):
        with pytest.raises(ResultDoesNotEncode, match="deeper than 200"):
            returning(Any).encode_result(value)


def test_a_float_is_written_so_that_jsonb_keeps_it_a_float() -> None:
    assert encode_json([1e16, -1.5e17, 1e-7, 1.0, '1e16 \\" 1e16']) == (
        '[10000000000000000.0,-150000000000000000.0,1e-7,1.0,"1e16 \\\\\\" 1e16"]'
    )
    assert taking(int | float).encode((), {"x": 1e16}) == '{"x":10000000000000000.0}'
    assert taking(float).decode('{"x":100000}') == {"x": 100000.0}
    assert type(taking(float).decode('{"x":100000}')["x"]) is float


def test_a_decimal_never_becomes_a_number_in_json() -> None:
    assert taking(Decimal).encode((), {"x": Decimal("0.1")}) == '{"x":"0.1"}'


def test_a_decimal_that_is_no_number_passes_as_itself() -> None:
    for annotation in (Decimal, Decimal | int, list[Decimal | int]):
        sent = [Decimal("NaN")] if annotation == list[Decimal | int] else Decimal("NaN")
        assert str(through(annotation, sent)) == str(sent)


def test_members_of_a_union_may_have_the_same_name() -> None:
    one, two = (dataclasses.make_dataclass("Same", [("x", int)]) for _ in range(2))
    one.__module__, two.__module__ = "shop", "bank"
    for value in (one(1), two(1)):
        assert type(through(one | two, value)) is type(value)


def test_a_class_with_its_own_rules_for_pydantic_needs_no_equality() -> None:
    got = through(Handle, Handle(3))
    assert (type(got), got.number) == (Handle, 3)


def test_secrets_arrive_and_are_not_masked() -> None:
    login = Login(user="**********", password=pydantic.SecretStr("geheim"), pins=[pydantic.SecretBytes(b"12")])
    assert through(Login, login) == login
    assert through(list[Login], [login]) == [login]
    assert through(pydantic.SecretStr, pydantic.SecretStr("geheim")).get_secret_value() == "geheim"


def test_what_was_refused_is_not_repeated_in_the_message() -> None:
    wrong = User.model_construct(name=["geheim"], born="geheim")
    for annotation, value in (
        (int, "geheim"),
        (User, {"name": 5, "born": "geheim"}),
        (Any, {1: "geheim"}),
        (User, wrong),
    ):
        assert "geheim" not in refused(annotation, value)
    signature, given, waiting = taking(User), {"x": {"born": "geheim"}}, '{"x":{"born":"geheim"}}'
    for call in (lambda: signature.encode((), given), lambda: signature.decode(waiting)):
        with pytest.raises(ArgumentsDoNotFit) as caught:
            call()
        assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_a_dict_for_a_model_may_use_its_aliases_and_is_written_by_field_names() -> None:
    text = taking(Aliased).encode((), {"x": {"When": datetime(2024, 1, 1, tzinfo=UTC)}})
    assert text == '{"x":{"at":"2024-01-01T00:00:00Z"}}'


def test_positional_arguments_are_bound_to_names_and_defaults_are_left_to_the_call() -> None:
    signature = Signature.of(send)
    assert signature.parameters == ("to", "n", "at")
    assert signature.encode(("a",), {}) == '{"to":"a"}'
    assert signature.encode(("a", 2), {"at": None}) == '{"to":"a","n":2,"at":null}'
    assert signature.decode('{"to":"a"}') == {"to": "a"}
    assert signature.decode('{"at":null,"to":"a"}') == {"to": "a", "at": None}


@pytest.mark.parametrize(
    ("args", "kwargs", "parameter", "sentence"),
    [
        ((), {}, "to", f"parameter 'to' of {SEND} is missing: give it, or give it a default"),
        (("a",), {"two": "b"}, "two", f"{SEND} has no parameter 'two': did you mean 'to'?"),
        (("a",), {"zzz": "b"}, "zzz", f"{SEND} has no parameter 'zzz': it takes to, n, at"),
        (("a",), {"to": "b"}, "to", f"parameter 'to' of {SEND} was given twice, by position and by name: give it once"),
        (("a", 1, None), {}, None, f"{SEND} takes 2 positional arguments and 3 were given"),
        (
            ("a", "1"),
            {},
            "n",
            f"parameter 'n' of {SEND} (annotated int) does not take this: Expected `int`, got `str`",
        ),
    ],
)
def test_arguments_that_cannot_be_bound_are_refused_with_a_sentence(
    args: tuple[Any, ...], kwargs: dict[str, Any], parameter: str | None, sentence: str
) -> None:
    with pytest.raises(ArgumentsDoNotFit) as caught:
        Signature.of(send).encode(args, kwargs)
    assert (caught.value.parameter, str(caught.value)) == (parameter, sentence)


def test_many_rows_are_written_like_one_and_an_error_names_row_and_parameter() -> None:
    signature = Signature.of(send)
    rows: list[dict[str, Any]] = [{"to": "a", "n": n} for n in range(3)]
    assert signature.encode_many(iter(rows)) == [signature.encode((), row) for row in rows]
    bad: list[tuple[Any, str | None, str]] = [
        ({"to": "a", "n": "x"}, "n", "rows[3]: parameter 'n'"),
        ({"n": 1}, "to", "rows[3]: parameter 'to'"),
        ({"to": "a", "m": 1}, "m", "rows[3]: "),
        (("a", 1), None, "rows[3]: give a dict of arguments by name, not a tuple"),
    ]
    for row, parameter, start in bad:
        with pytest.raises(ArgumentsDoNotFit) as caught:
            signature.encode_many([*rows, row])
        assert caught.value.parameter == parameter
        assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("payload", "parameter"),
    [
        ('{"to":"a","m":1}', "m"),
        ('{"n":1}', "to"),
        ('{"to":1}', "to"),
        ('{"to":"a","n":"1"}', "n"),
        ('{"to":"a","n":1.5}', "n"),
        ('{"to":"a","at":"yesterday"}', "at"),
        ('["a"]', None),
        ("{", None),
    ],
)
def test_a_waiting_payload_that_no_longer_fits_is_refused_by_name(payload: str, parameter: str | None) -> None:
    with pytest.raises(ArgumentsDoNotFit) as caught:
        Signature.of(send).decode(payload)
    assert caught.value.parameter == parameter
    assert "fit" in str(caught.value) or parameter is None


def test_a_waiting_payload_for_a_changed_class_is_refused_by_name() -> None:
    for annotation, payload in ((User, '{"x":{"name":"a"}}'), (Point, '{"x":{"x":"1"}}'), (Planet, '{"x":"PLUTO"}'),
                                (Rights, '{"x":8}'), (datetime | int, '{"x":"a"}'), (Path, '{"x":1}')):  # fmt: skip
        with pytest.raises(ArgumentsDoNotFit) as caught:
            taking(annotation).decode(payload)
        assert caught.value.parameter == "x"


def test_a_parameter_may_have_any_name() -> None:
    def odd(p0: int, __struct_fields__: int, rename: int, größe: int) -> None: ...  # noqa: PLC2401

    given = {"größe": 4, "rename": 3, "__struct_fields__": 2, "p0": 1}
    signature = Signature.of(odd)
    assert signature.decode(signature.encode((), given)) == given


def test_a_function_without_parameters_takes_nothing() -> None:
    signature = Signature.of(lambda: None)
    assert signature.decode(signature.encode((), {})) == {}
    with pytest.raises(ArgumentsDoNotFit, match="takes nothing"):
        signature.encode((), {"a": 1})


def test_required_parameters_may_follow_ones_with_defaults() -> None:
    def function(a: int = 1, *, b: str, c: int = 3) -> None: ...

    signature = Signature.of(function)
    assert signature.decode(signature.encode((), {"c": 5, "b": "x"})) == {"b": "x", "c": 5}


class Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def build(cls, to: str) -> None: ...

    def __call__(self, to: str) -> None: ...


def _star(*rest: int) -> None: ...
def _names(**rest: int) -> None: ...
def _slash(first: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (_star, "parameter 'rest' of tests.words.test_codec._star takes any number of values"),
        (_names, "parameter 'rest' of tests.words.test_codec._names takes any names"),
        (_slash, "parameter 'first' of tests.words.test_codec._slash is positional-only"),
        (Mailer.send, "parameter 'self' of tests.words.test_codec.Mailer.send"),
        (Mailer().send, "is a method, not a function"),
        (Mailer.build, "is a method, not a function"),
        (Mailer(), "is a Mailer, not a function"),
        (functools.partial(send, "a"), "is a partial, not a function"),
        (len, "is a builtin_function_or_method, not a function"),
        (Point, "is a type, not a function"),
    ],
)
def test_a_function_whose_arguments_cannot_travel_by_name_is_refused(
    function: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(BadTask) as caught:
        Signature.of(function)
    assert sentence in str(caught.value)


def test_a_wrapped_function_has_the_parameters_and_types_of_the_one_inside() -> None:
    @functools.wraps(send)
    def outer(*args: Any, **kwargs: Any) -> None: ...

    signature = Signature.of(outer)
    at = datetime(2024, 1, 1, tzinfo=UTC)
    assert signature.decode(signature.encode(("a",), {"at": at})) == {"to": "a", "at": at}


def test_annotations_of_a_wrapped_function_are_looked_up_where_it_was_written() -> None:
    elsewhere: dict[str, Any] = {"functools": functools}
    exec("def wrap(f):\n @functools.wraps(f)\n def outer(*a, **k): ...\n return outer", elsewhere)
    outer = elsewhere["wrap"](send)
    assert Signature.of(outer).encode(("a",), {"at": None}) == '{"to":"a","at":null}'


def test_annotations_are_looked_up_at_the_first_use_and_not_before() -> None:
    def function(x: Later) -> None: ...  # type: ignore[name-defined] # noqa: F821

    signature = Signature.of(function)
    globals()["Later"] = date
    try:
        assert signature.encode((), {"x": date(2024, 1, 1)}) == '{"x":"2024-01-01"}'
    finally:
        del globals()["Later"]


def test_an_annotation_that_cannot_be_looked_up_is_a_bad_task_with_its_name() -> None:
    def function(a: int, x: list[Missing]) -> None: ...  # type: ignore[name-defined] # noqa: F821

    def result() -> Missing: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(BadTask, match=r"parameter 'x' of .* is annotated list\[Missing\]"):
        Signature.of(function).encode((), {"a": 1, "x": []})
    with pytest.raises(BadTask, match=r"the return value of .* is annotated Missing"):
        Signature.of(result).encode((), {})


def test_a_class_of_the_enclosing_function_is_found_where_the_function_uses_it() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    def function(x: Local) -> type[Local]:
        return Local

    signature = Signature.of(function)
    assert signature.decode(signature.encode((), {"x": Local(1)})) == {"x": Local(1)}


def test_an_annotation_that_no_json_can_carry_is_a_bad_task_with_the_parameter_s_name() -> None:
    with pytest.raises(BadTask, match=r"parameter 'x' .* annotated .*socket.*: .* is not a type that JSON can carry"):
        taking(Annotated[socket.socket, pydantic.Field()]).encode((), {"x": 1})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Point, Point(1)),
        (list[User], [User(name="a", born=date(2000, 1, 1))]),
        (datetime, datetime(2024, 1, 1, tzinfo=UTC)),
        (set[UUID], {UUID(int=1)}),
        (dict[int, Decimal], {1: Decimal("0.10")}),
        (Point | None, Point(2)),
        (Planet, Planet.EARTH),
        (str | bytes, b"abcd"),
        (int, 0),
        (str, ""),
        (list[int], []),
        (Any, {"a": [1, 2.5, None, "x"]}),
    ],
    ids=repr,
)
def test_a_result_comes_back_as_the_return_annotation_says(annotation: Any, value: Any) -> None:
    signature = returning(annotation)
    got = signature.decode_result(signature.encode_result(value))
    assert (type(got), got) == (type(value), value)


def test_a_result_without_a_fitting_annotation_is_written_by_its_own_type() -> None:
    natural = [
        (Point(1), {"x": 1, "y": 0.0}),
        (User(name="a", born=date(2000, 1, 1)), {"name": "a", "born": "2000-01-01", "tags": []}),
        (Order(UUID(int=1), Decimal("1.0")), {"id": str(UUID(int=1)), "total": "1.0", "note": None}),
        ((1, date(2024, 1, 1)), [1, "2024-01-01"]),
        ({1: {2}}, {"1": [2]}),
        (Path("a/b"), "a/b"),
        (b"a", "YQ=="),
        (Colour.RED, "red"),
        (True, True),
    ]
    for annotation in (Any, None, list[timedelta], "NoReturn"):
        signature = returning("__import__('typing').NoReturn" if annotation == "NoReturn" else annotation)
        for value, plain in natural:
            assert signature.decode_result(signature.encode_result(value)) == plain


def test_no_result_is_no_text() -> None:
    for annotation in (Any, None, int, Point | None):
        assert returning(annotation).encode_result(None) is None
        assert returning(annotation).decode_result(None) is None


@pytest.mark.parametrize("annotation", [Any, dict[str, Any], float, socket.socket], ids=repr)
def test_a_result_that_json_cannot_carry_says_what_why_and_how(annotation: Any) -> None:
    signature = returning(annotation)
    with socket.socket() as opened, Path(__file__).open() as file:
        for value in (opened, {"a": opened}, {object()}, file, (n for n in [1]), float("nan"), [None, float("inf")],
                      "a\0", "\ud800", {(1, 2): 3}, {None: 1}, ValueError("x"), send, int):  # fmt: skip
            with pytest.raises(ResultDoesNotEncode) as caught:
                signature.encode_result(value)
            assert f"a {type(value).__qualname__}, cannot be stored: " in str(caught.value)
            assert "; return JSON types" in str(caught.value)


def test_plain_json_takes_json_types_only() -> None:
    assert encode_json({"a": [1, None, "x", True, 1.5]}) == '{"a":[1,null,"x",true,1.5]}'
    assert decode_json('{"a":[1]}') == {"a": [1]}
    assert decode_json(None) is None
    for value in (date(2024, 1, 1), {"a": (1,)}, {1: "a"}, float("nan"), "\0", "\ud800", Point(1), object()):
        with pytest.raises(ArgumentsDoNotFit, match="not plain JSON"):
            encode_json(value)


def test_pydantic_is_imported_only_when_a_type_needs_it() -> None:
    code = """
import dataclasses, datetime, sys
from aaiclick_queue.codec import Signature
@dataclasses.dataclass
class Point: x: int
def function(a: int, p: Point, at: datetime.datetime | str) -> list[Point]: ...
signature = Signature.of(function)
signature.decode(signature.encode((1, Point(1), "now"), {}))
signature.decode_result(signature.encode_result([Point(1)]))
assert not [name for name in sys.modules if name.startswith("pydantic")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
