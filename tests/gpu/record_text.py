"""Text of the experiment of record: its tokenizer, and token shards packed for the way to a machine without network.

A packed folder has one xz file for each chunk of a shard, and shards.json with the sizes and hashes of the shards."""

import concurrent.futures
import hashlib
import json
import lzma
import os

CHUNK = 64 << 20 # bytes of a shard in one file: smaller ones compress worse, larger ones do not use all cores
# 16-bit tokens: literals know the byte before and the place in the pair. The dictionary covers the chunk.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1, "dict_size": CHUNK}]


def train_tokenizer(jsonl_path, out_json, vocab=8192, sample_mb=32):
    """Train a byte-level BPE on an evenly spread sample of the documents of a jsonl file; write a tokenizer.json.

    The same text gives the same file. sample_mb: about that many 10^6 bytes of the jsonl file.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(_sample(jsonl_path, sample_mb), trainer)
    tokenizer.save(out_json + ".part")
    os.replace(out_json + ".part", out_json)


def _sample(jsonl_path, megabytes):
    """Return the texts of every n-th line, so that they have about that many 10^6 bytes in all."""
    share = min(1.0, megabytes * 1e6 / max(1, os.path.getsize(jsonl_path)))
    texts, due = [], 0.0
    with open(jsonl_path, encoding="utf-8") as file:
        for line in file:
            due += share
            if due >= 1:
                due -= 1
                texts.append(json.loads(line)["text"])
    return texts


def _hash(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _threads(work, items):
    """Calls work(item) on all cores: compression leaves Python's lock."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def pack(shards, folder):
    """Compress token shards into FOLDER/NAME.K.xz, and write their sizes and hashes to FOLDER/shards.json."""
    os.makedirs(folder)
    entries, work = {}, []
    for path in shards:
        name, size = os.path.basename(path), os.path.getsize(path)
        with open(path, "rb") as file:
            entries[name] = {"bytes": size, "hash": _hash(file.read())}
        work += [(path, at, os.path.join(folder, f"{name}.{at // CHUNK:03}.xz")) for at in range(0, size, CHUNK)]

    def compress(item):
        path, at, out = item
        with open(path, "rb") as file, open(out, "wb") as to:
            file.seek(at)
            to.write(lzma.compress(file.read(CHUNK), lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=FILTERS))

    _threads(compress, work)
    with open(os.path.join(folder, "shards.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)


def unpack(folder, out):
    """Write the shards of FOLDER into OUT, byte by byte as they were. Raises ValueError that names a damaged file."""
    os.makedirs(out)
    listed = os.path.join(folder, "shards.json")
    try:
        with open(listed, encoding="utf-8") as file:
            entries = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{listed}: cannot read it ({error}): copy the folder again") from None
    for name, entry in entries.items():
        chunks = [os.path.join(folder, f"{name}.{at // CHUNK:03}.xz") for at in range(0, entry["bytes"], CHUNK)]

        def decompress(path):
            try:
                with open(path, "rb") as file:
                    return lzma.decompress(file.read())
            except (lzma.LZMAError, EOFError, OSError) as error:
                raise ValueError(f"{path}: cannot read the tokens ({error}): copy the folder again") from None

        data = b"".join(_threads(decompress, chunks))
        if len(data) != entry["bytes"] or _hash(data) != entry["hash"]:
            raise ValueError(f"{os.path.join(folder, name)}: these are not the packed tokens: copy the folder again")
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)
