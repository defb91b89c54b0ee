#!/usr/bin/env python3
"""Write a GGUF file from a model directory (config.json, model.safetensors in bfloat16).

  make_gguf.py MODEL_DIR OUT.gguf [--type f32|bf16|f16|q4_1]

Key names, tensor names and layouts are the field's own (llama.cpp's converter and loader): q and k
rows of llama and mixtral stand in the order of interleaved rotation, llama3 scaling is the tensor
rope_freqs.weight, experts are stacked, a tied output is absent. --type is that of matrices; norms,
biases and routers are F32. The tokenizer is the byte-level alphabet without merges: these models
have no text. Refuses what it does not know by name, since a silently wrong file would blame the
reader. Needs nothing beyond Python 3.9.

One departure from the converter: it writes an epsilon of 1e-5 for every olmoe model, here it is
that of config.json.
"""
import argparse
import array
import json
import math
import os
import re
import struct
import sys

ARCHS = {"qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "llama": "llama",
         "mixtral": "llama", "olmoe": "olmoe", "qwen2_moe": "qwen2moe"}
GGML = {"f32": 0, "f16": 1, "q4_1": 3, "bf16": 30}
FILE_TYPE = {"f32": 0, "f16": 1, "q4_1": 3, "bf16": 32}
SIZE = {"f32": 4, "f16": 2, "bf16": 2}
ALIGN = 32

GLOBALS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
LAYER = {  # after "model.layers.N." -> after "blk.N."
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
EXPERT_PART = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def fail(text):
    sys.exit("make_gguf.py: " + text)


# ---- reading ----

def read_safetensors(path):
    """name -> (shape outermost first, bfloat16 bytes). Source: the safetensors format."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        if t["dtype"] != "BF16":
            fail("%s: tensor %s is %s, expected BF16" % (path, name, t["dtype"]))
        begin, end = t["data_offsets"]
        tensors[name] = (t["shape"], data[8 + n + begin:8 + n + end])
    return tensors


# ---- layout ----

def interleave(shape, data, n_heads):
    """Rows of each head from (2, d/2), pairs (i, i + d/2), to (d/2, 2), pairs (2i, 2i + 1)."""
    row = len(data) // shape[0]
    half = shape[0] // n_heads // 2
    rows = [(h * 2 + part) * half + i for h in range(n_heads) for i in range(half) for part in range(2)]
    return b"".join(data[r * row:(r + 1) * row] for r in rows)


def rope_factors(rope, d_head):
    """What each frequency is divided by. Source: generate_extra_tensors of llama.cpp's conversion/llama.py."""
    ctx = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    factors = []
    for i in range(0, d_head, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / d_head)
        if wavelength < ctx / high:
            factors.append(1.0)
        elif wavelength > ctx / low:
            factors.append(float(factor))
        else:
            smooth = (ctx / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return struct.pack("<%df" % len(factors), *factors)


def rename(config, tensors):
    """name in the GGUF -> (shape outermost first, bfloat16 bytes), experts stacked by number."""
    out, experts = {}, {}
    swap = {"attn_q.weight": config["num_attention_heads"], "attn_k.weight": config["num_key_value_heads"]}
    for name, (shape, data) in tensors.items():
        if name in GLOBALS:
            out[GLOBALS[name]] = (shape, data)
            continue
        m = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name) or fail("tensor %s is not known" % name)
        layer, rest = m.groups()
        e = EXPERT.fullmatch(rest)
        if e and e.group(2) in EXPERT_PART:
            key = "blk.%s.ffn_%s_exps.weight" % (layer, EXPERT_PART[e.group(2)])
            experts.setdefault(key, {})[int(e.group(1))] = (shape, data)
            continue
        if rest not in LAYER:
            fail("tensor %s is not known" % name)
        if config["model_type"] in ("llama", "mixtral") and LAYER[rest] in swap:
            data = interleave(shape, data, swap[LAYER[rest]])
        if LAYER[rest] == "ffn_gate_inp_shexp.weight":
            shape = shape[1:]  # (1, d_model): a vector in GGUF
        out["blk.%s.%s" % (layer, LAYER[rest])] = (shape, data)
    for key, parts in experts.items():
        if sorted(parts) != list(range(n_experts(config))):
            fail("%s: experts %s, expected %d of them" % (key, sorted(parts), n_experts(config)))
        out[key] = ([len(parts)] + parts[0][0], b"".join(parts[i][1] for i in range(len(parts))))
    if config.get("tie_word_embeddings") and out.pop("output.weight", None):
        print("make_gguf.py: tied output left out", file=sys.stderr)
    return out


def n_experts(config):
    return config.get("num_local_experts") or config.get("num_experts") or 0


# ---- types ----

def widen(data):
    """bfloat16 -> float32: a zero half below."""
    out = bytearray(len(data) * 2)
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return bytes(out)


def block_q4_1(v):
    """32 values as scale, minimum and nibbles: those of the first half below those of the second."""
    least = min(v)
    d, = struct.unpack("<e", struct.pack("<e", (max(v) - least) / 15))
    n = [min(15, int((x - least) / d + 0.5)) if d else 0 for x in v]
    return struct.pack("<ee", d, least) + bytes(a | b << 4 for a, b in zip(n[:16], n[16:]))


def to_type(name, data, kind):
    """bfloat16 bytes as kind; says on stderr when a half cannot hold the values."""
    if kind == "bf16":
        return data
    wide = widen(data)
    if kind == "f32":
        return wide
    values = array.array("f", wide)
    if sys.byteorder == "big":
        values.byteswap()
    if kind == "q4_1":
        return b"".join(block_q4_1(values[i:i + 32]) for i in range(0, len(values), 32))
    half = struct.pack("<%de" % len(values), *values)
    inexact = sum(a != b for a, b in zip(values, struct.unpack("<%de" % len(values), half)))
    if inexact:
        print("make_gguf.py: %s: %d of %d values rounded to f16" % (name, inexact, len(values)), file=sys.stderr)
    return half


# ---- writing ----

def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(v):
    """A metadata value, its type in front: bool, int (u32), float (f32), str, list of str or of int (i32)."""
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if v and isinstance(v[0], int):
        return struct.pack("<IIQ%di" % len(v), 9, 5, len(v), *v)
    return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(text(x) for x in v)


def alphabet():
    """The 256 letters that byte-level BPE writes bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(rest)) for b in range(256)]


def metadata(config, name, kind):
    arch = ARCHS[config["model_type"]]
    rope = config["rope_parameters"]
    d_head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        fail("config.json: a sliding window is not known here")
    if config["vocab_size"] != 256:
        fail("config.json: vocab_size is %d, expected 256" % config["vocab_size"])
    if rope["rope_type"] not in ("default", "llama3"):
        fail("config.json: rope_type is %s, expected default or llama3" % rope["rope_type"])
    yield "general.architecture", arch
    yield "general.name", name
    yield "general.file_type", FILE_TYPE[kind]
    yield arch + ".block_count", config["num_hidden_layers"]
    yield arch + ".context_length", config["max_position_embeddings"]
    yield arch + ".embedding_length", config["hidden_size"]
    yield arch + ".feed_forward_length", config["intermediate_size"]
    yield arch + ".attention.head_count", config["num_attention_heads"]
    yield arch + ".attention.head_count_kv", config["num_key_value_heads"]
    yield arch + ".rope.freq_base", float(rope["rope_theta"])
    yield arch + ".attention.layer_norm_rms_epsilon", float(config["rms_norm_eps"])
    if config.get("head_dim"):
        yield arch + ".attention.key_length", d_head
        yield arch + ".attention.value_length", d_head
    if n_experts(config):
        yield arch + ".expert_count", n_experts(config)
        yield arch + ".expert_used_count", config["num_experts_per_tok"]
    if "moe_intermediate_size" in config:
        yield arch + ".expert_feed_forward_length", config["moe_intermediate_size"]
    if "shared_expert_intermediate_size" in config:
        yield arch + ".expert_shared_feed_forward_length", config["shared_expert_intermediate_size"]
    if arch == "llama":
        yield arch + ".vocab_size", config["vocab_size"]
        yield arch + ".rope.dimension_count", d_head
    yield "tokenizer.ggml.model", "gpt2"
    yield "tokenizer.ggml.pre", "gpt-2"
    yield "tokenizer.ggml.tokens", alphabet()
    yield "tokenizer.ggml.token_type", [1] * 256
    yield "tokenizer.ggml.merges", []
    yield "tokenizer.ggml.bos_token_id", config["bos_token_id"]
    yield "tokenizer.ggml.eos_token_id", config["eos_token_id"]
    yield "tokenizer.ggml.add_bos_token", False


def is_float(name, shape):
    """Vectors and routers stay float32 in every file."""
    return len(shape) == 1 or name.endswith("ffn_gate_inp.weight")


def write(path, meta, tensors):
    """tensors: [(name, shape outermost first, type, bytes)]. Source: the GGUF specification, version 3."""
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(meta))
    head += b"".join(text(k) + value(v) for k, v in meta)
    at = 0
    for name, shape, kind, data in tensors:
        head += text(name) + struct.pack("<I%dQ" % len(shape), len(shape), *reversed(shape))
        head += struct.pack("<IQ", GGML[kind], at)
        at += len(data) + -len(data) % ALIGN
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGN))
        for _, _, _, data in tensors:
            f.write(data + b"\0" * (-len(data) % ALIGN))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model_dir")
    p.add_argument("out")
    p.add_argument("--type", default="f32", choices=GGML)
    a = p.parse_args()
    with open(os.path.join(a.model_dir, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if config["model_type"] not in ARCHS:
        fail("config.json: model_type is %s, expected %s" % (config["model_type"], ", ".join(ARCHS)))
    tensors = []
    found = rename(config, read_safetensors(os.path.join(a.model_dir, "model.safetensors")))
    for name in sorted(found):
        shape, data = found[name]
        kind = "f32" if is_float(name, shape) else a.type
        tensors.append((name, shape, kind, to_type(name, data, kind)))
    rope = config["rope_parameters"]
    if rope["rope_type"] == "llama3":
        factors = rope_factors(rope, config["head_dim"])
        tensors.append(("rope_freqs.weight", [len(factors) // 4], "f32", factors))
    name = os.path.basename(os.path.normpath(a.model_dir))
    write(a.out, list(metadata(config, name, a.type)), tensors)


if __name__ == "__main__":
    main()
