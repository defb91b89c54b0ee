#!/usr/bin/env python3
"""The independent judge of tests/test_schema.c: Debian's python3-jsonschema.

  judge.py make SEED N     N lines {"schema", "valid": [texts], "invalid": [texts]}: random schemas of the supported
                           keywords, values that satisfy them in their one spelling, and values that do not
  judge.py check FILE      lines {"schema", "texts"}: each text must be JSON without a name twice that satisfies it;
                           prints "N texts, M wrong" and the first wrong ones
"""
import json, random, re, sys
from decimal import Decimal

import jsonschema

R = random.Random()


def pattern_holds(validator, pattern, instance, schema):
    """ECMA's meaning: \\d \\w are ASCII, $ is the very end."""
    if not validator.is_type(instance, "string"):
        return
    ours = re.sub(r"(\\.)|(\$)(?![^\[]*\])", lambda m: m.group(1) or r"\Z", pattern)
    if not re.search(ours, instance, re.ASCII):
        yield jsonschema.ValidationError("%r does not match %r" % (instance, pattern))


Judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern_holds})


def properties_in_order(validator, properties, instance, schema):
    """As grammars spell objects: the schema's properties in its order, others after them."""
    yield from jsonschema.Draft202012Validator.VALIDATORS["properties"](validator, properties, instance, schema)
    if validator.is_type(instance, "object"):
        places = {name: k for k, name in enumerate(properties)}
        order = [places.get(name, len(places)) for name in instance]
        if order != sorted(order):
            yield jsonschema.ValidationError("out of order")


InOrder = jsonschema.validators.extend(Judge, {"properties": properties_in_order})


def spell(v):
    if isinstance(v, float):
        if v == int(v):
            return str(int(v))
        return format(Decimal(repr(v)), "f")
    if isinstance(v, dict):
        return "{%s}" % ",".join("%s:%s" % (spell(k), spell(x)) for k, x in v.items())
    if isinstance(v, list):
        return "[%s]" % ",".join(map(spell, v))
    return json.dumps(v, ensure_ascii=False)


# ---- random schemas, each with a function that makes values ----

LETTERS = "abz019 -_.\"\\/\n\té€中😀"


def word(n=6):
    return "".join(R.choice(LETTERS) for _ in range(R.randint(0, n)))


def regex(deep=2):
    """(pattern, maker)"""
    kind = R.randrange(9 if deep else 5)
    if kind == 0:
        c = R.choice("ab1é-中")
        return c, lambda: c
    if kind == 1:
        return "[a-c]", lambda: R.choice("abc")
    if kind == 2:
        return "[^a\\d]", lambda: R.choice("bé😀 \n\"\\")
    if kind == 3:
        p = R.choice(["\\d", "\\w", ".", "\\x41", "\\.", "\\\\", "\\n", "\\u00e9", "[\\w.-]", "\\W", "\\S"])
        c = {"\\d": "7", "\\w": "_", ".": "é", "\\x41": "A", "\\.": ".", "\\\\": "\\", "\\n": "\n", "\\u00e9": "é",
             "[\\w.-]": "-", "\\W": "中", "\\S": "x"}[p]
        return p, lambda: c
    if kind == 4:
        return "(?:)", lambda: ""
    if kind in (5, 6):
        parts = [regex(deep - 1) for _ in range(R.randint(1, 3))]
        return "".join(p for p, _ in parts), lambda: "".join(m() for _, m in parts)
    if kind == 7:
        parts = [regex(deep - 1) for _ in range(R.randint(1, 3))]
        return "(%s)" % "|".join(p for p, _ in parts), lambda: R.choice(parts)[1]()
    p, m = regex(deep - 1)
    lo, hi, q = R.choice([(0, 3, "*"), (1, 3, "+"), (0, 1, "?"), (2, 2, "{2}"), (1, 3, "{1,3}"), (2, 4, "{2,}")])
    return "(?:%s)%s%s" % (p, q, R.choice(["", "", "?"])), lambda: "".join(m() for _ in range(R.randint(lo, hi)))


def a_string():
    s = {"type": "string"}
    if R.random() < 0.5:
        p, m = regex(3)
        begin, end = R.random() < 0.6, R.random() < 0.6
        s["pattern"] = ("^(?:%s)" % p if begin else p) + ("$" if end and ("|" not in p or begin) else "")
        if end and not begin and "|" in p:
            s["pattern"] = "(?:%s)$" % p
        make = lambda: ("" if begin else word(2)) + m() + ("" if end else word(2))
    else:
        make = word
    if R.random() < 0.3:
        s["minLength"] = R.randint(0, 4)
    if R.random() < 0.4:
        s["maxLength"] = R.randint(0, 9)
    return s, lambda: make()


def bound():
    return R.choice([0, 1, -1, 10, 99, 100, 123, -999, 0.5, -0.1, 2.25, 0.001, 1e-7, 12.75, R.randint(-2000, 2000),
                     round(R.uniform(-50, 50), R.randint(1, 6)), R.uniform(-1, 1), 1e21, -1e15, 2**53 + 1, 2**62])


def a_number():
    s = {"type": R.choice(["integer", "number"])}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if R.random() < 0.3:
            s[key] = bound()

    def make():
        b = R.choice([v for k, v in s.items() if k != "type"] or [R.randint(-100, 100)])
        v = b + R.choice([0, 1, -1, 10, -10, 1000, -1000, 0.1, -0.1, 1e-9, -1e-9])
        if s["type"] == "integer" and v != int(v):
            v = int(v)
        return v if isinstance(v, int) or R.random() < 0.5 or abs(v) > 1e300 or v != int(v) else int(v)
    return s, make


def a_literal():
    return R.choice([({"type": "null"}, lambda: None), ({"type": "boolean"}, lambda: R.random() < 0.5)])


def an_enum():
    values = [R.choice([1, 2.5, "a", "ab", word(), None, True, [1, "x"], {"k": [None]}, -3]) for _ in range(R.randint(1, 5))]
    if R.random() < 0.3:
        return {"const": values[0]}, lambda: values[0]
    return {"enum": values}, lambda: R.choice(values)


def anything(deep=2):
    kind = R.randrange(6 if deep else 4)
    if kind == 4:
        return [anything(deep - 1) for _ in range(R.randint(0, 3))]
    if kind == 5:
        return {word(4): anything(deep - 1) for _ in range(R.randint(0, 3))}
    return R.choice([None, True, word(), R.randint(-99, 99)])


def an_array(deep):
    s, prefix = {"type": "array"}, []
    if R.random() < 0.3:
        prefix = [schema(deep - 1) for _ in range(R.randint(1, 2))]
        s["prefixItems"] = [p for p, _ in prefix]
    item = (True, anything)
    if R.random() < 0.8:
        item = schema(deep - 1)
        s["items"] = item[0]
    if R.random() < 0.4:
        s["minItems"] = R.randint(0, 3)
    if R.random() < 0.4:
        s["maxItems"] = R.randint(0, 4)
    return s, lambda: [m() for _, m in prefix][:R.randint(0, 3)] + [item[1]() for _ in range(R.randint(0, 4))]


def an_object(deep):
    names = list(dict.fromkeys(R.choice(["a", "ab", "abc", "b", "name", "é", "q\"", "", "x y", word(3)])
                               for _ in range(R.randint(0, 5))))
    props = {n: schema(deep - 1) for n in names}
    s = {"type": "object", "properties": {n: p for n, (p, _) in props.items()}}
    required = [n for n in names if R.random() < 0.5]
    if required or R.random() < 0.2:
        s["required"] = required
    more = R.choice([None, False, True, "schema"])
    other = (more, anything)
    if more == "schema":
        other = schema(deep - 1)
    if more is not None:
        s["additionalProperties"] = other[0]

    def make():
        v = {n: m() for n, (_, m) in props.items() if n in required or R.random() < 0.5}
        if more is not False and R.random() < 0.5:
            for n in [word(3) for _ in range(R.randint(1, 2))]:
                if n not in props:
                    v[n] = other[1]()
        return v
    return s, make


def a_union(deep):
    parts = [schema(deep - 1) for _ in range(R.randint(1, 4))]
    return {"anyOf": [p for p, _ in parts]}, lambda: R.choice(parts)[1]()


def a_type_list():
    parts = [R.choice([a_string, a_number, a_literal])() for _ in range(2)]
    s = {}
    for p, _ in parts:
        s.update(p)
    s["type"] = list(dict.fromkeys(p["type"] for p, _ in parts))
    return s, lambda: R.choice(parts)[1]()


def schema(deep):
    kinds = [a_string, a_number, a_literal, an_enum, a_type_list]
    if deep > 0:
        kinds += [lambda: an_array(deep)] * 2 + [lambda: an_object(deep)] * 4 + [lambda: a_union(deep)] * 2
    s, m = R.choice(kinds)()
    if R.random() < 0.1 and isinstance(s, dict):
        s = dict(s, title="t", description="d", default=None)
    return s, m


def recursive():
    """A schema that refers to itself."""
    inner, m = schema(1)
    s = R.choice([
        {"$defs": {"n": {"type": "object", "properties": {"v": inner, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
                         "required": ["v"], "additionalProperties": False}}, "$ref": "#/$defs/n"},
        {"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"v": inner, "kids": {"$ref": "#/$defs/n"}},
                         "required": ["kids"]}]}}, "$ref": "#/$defs/n"},
        {"anyOf": [inner, {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}]},
    ])

    def make(deep=3):
        if "anyOf" in s:
            return m() if deep == 0 or R.random() < 0.4 else [make(deep - 1) for _ in range(R.randint(0, 3))]
        if "anyOf" in s["$defs"]["n"]:
            return None if deep == 0 or R.random() < 0.3 else {"v": m(), "kids": make(deep - 1)}
        return {"v": m(), "kids": [make(deep - 1) for _ in range(R.randint(0, 2) if deep else 0)]}
    return s, make


def conjunction():
    """anyOf and $ref beside other keywords."""
    p, m = an_object(1)
    names = list(p["properties"])
    s = dict(p, anyOf=[{"required": [n]} for n in names] or [True])
    return R.choice([(s, m), ({"$defs": {"x y/~": p}, "$ref": "#/$defs/x%20y~1~0", "type": ["object", "null"]}, m)])


# ---- the two modes ----



def one(n):
    while True:
        s, make = (recursive if n % 7 == 0 else conjunction if n % 7 == 1 else lambda: schema(3))()
        judge = Judge(s)
        valid, invalid = [], []
        for _ in range(60):
            v = make()
            text = spell(v)
            if not judge.is_valid(json.loads(text)):
                invalid.append(text)
            elif InOrder(s).is_valid(json.loads(text)):
                valid.append(text)
        for _ in range(20):
            text = spell(R.choice([anything, lambda: schema(2)[1]()])())
            if not judge.is_valid(json.loads(text)):
                invalid.append(text)
        if valid or n % 5 == 0:
            return {"schema": s, "valid": list(dict.fromkeys(valid))[:15], "invalid": list(dict.fromkeys(invalid))[:15]}


def no_twins(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def check(path):
    texts = wrong = 0
    for line in open(path, encoding="utf-8"):
        line = json.loads(line)
        judge = Judge(line["schema"])
        for text in line["texts"]:
            texts += 1
            try:
                error = next(judge.iter_errors(json.loads(text, object_pairs_hook=no_twins)), None)
            except ValueError as e:
                error = e
            if error is not None:
                wrong += 1
                if wrong <= 5:
                    print("WRONG %s\n  for %s\n  %s" % (text, json.dumps(line["schema"]), str(error)[:300]))
    print("%d texts, %d wrong" % (texts, wrong))


if sys.argv[1] == "make":
    R.seed(int(sys.argv[2]))
    for k in range(int(sys.argv[3])):
        print(json.dumps(one(k)))
else:
    check(sys.argv[2])
