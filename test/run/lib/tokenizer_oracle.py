#!/usr/bin/env python3
"""Tokenizers of three kinds, made of random text, and the ids that others give 10,000 random strings.

    tokenizer_oracle.py make FOLDER COUNT         writes FOLDER/texts.jsonl, and for each kind a tokenizer and KIND.npy
    tokenizer_oracle.py compare KIND.npy FILE.tok     ends with 1 unless a token file of choir has these ids

Kinds: sentencepiece (BPE with byte fallback, a tokenizer.model), gemma (the same as the tokenizer.json of Gemma) and
neox (byte-level BPE after NFC, with runs of blanks as added tokens, as GPT-NeoX has it). Needs numpy, tokenizers and
sentencepiece.
"""
import json
import os
import random
import struct
import sys

import numpy

ALPHABETS = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F),
             (0xAC00, 0xAC80), (0x1100, 0x11FF), (0x3040, 0x30FF), (0x4E00, 0x4EFF), (0x2000, 0x206F), (0x1F300, 0x1F64F)]


def strings(seed, count):
    """Words of several scripts with blanks, tabs and newlines between them, alone and in runs."""
    draw = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(draw.randrange(1, 9)):
            low, high = draw.choice(ALPHABETS[:1] * 8 + ALPHABETS)
            parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 8))))
            parts.append(draw.choice([" ", " ", " ", "  ", "    ", "\n", "\t", "'s ", ", ", str(draw.randrange(10**6)), ""]))
        yield "".join(parts)


def corpus():
    """Repeated words, so that there is something to merge."""
    draw = random.Random(1)
    words = [word for text in strings(2, 300) for word in text.split()]
    return [" ".join(draw.choice(words) for _ in range(8)) for _ in range(2000)]


def make_sentencepiece(folder, lines):
    import sentencepiece

    prefix = os.path.join(folder, "sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, model_type="bpe", vocab_size=2600, byte_fallback=True,
        add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity", split_digits=True,
        character_coverage=0.98, minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    return model.encode


def make_gemma(folder, _):
    """The model of SentencePiece as transformers converts it: a merge for each way to join two pieces."""
    import sentencepiece
    from tokenizers import Tokenizer

    model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "sentencepiece.model"))
    pieces = [model.id_to_piece(index) for index in range(model.get_piece_size())]
    vocab, merges = {piece: index for index, piece in enumerate(pieces)}, []
    for index, piece in enumerate(pieces):
        if model.is_control(index) or model.is_unknown(index) or model.is_byte(index):
            continue
        ways = [(piece[:at], piece[at:]) for at in range(1, len(piece)) if piece[:at] in vocab and piece[at:] in vocab]
        merges += [(model.get_score(index), way) for way in sorted(ways, key=lambda way: (vocab[way[0]], vocab[way[1]]))]
    merges.sort(key=lambda one: -one[0])
    special = [index for index in range(len(pieces)) if model.is_control(index) or model.is_unknown(index)]
    description = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": index, "content": pieces[index], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for index in special],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(way) for _, way in merges]}}
    path = os.path.join(folder, "gemma.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(description, out, ensure_ascii=False)
    tokenizer = Tokenizer.from_file(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def make_neox(folder, lines):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|endoftext|>", "<|padding|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    path = os.path.join(folder, "neox.json")
    tokenizer.save(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def make(folder, count):
    os.makedirs(folder, exist_ok=True)
    texts, lines = list(strings(3, count)), corpus()
    with open(os.path.join(folder, "texts.jsonl"), "w", encoding="utf-8") as out:
        for text in texts:
            out.write(json.dumps({"text": text}) + "\n")
    for kind, maker in (("sentencepiece", make_sentencepiece), ("gemma", make_gemma), ("neox", make_neox)):
        encode = maker(folder, lines)
        ids = [encode(text) for text in texts]
        numpy.save(os.path.join(folder, kind + ".npy"), numpy.array([x for row in ids for x in row], dtype=numpy.int64))
        numpy.save(os.path.join(folder, kind + ".lengths.npy"), numpy.array([len(row) for row in ids], dtype=numpy.int64))


def tokens(path):
    """The ids of a token file of choir: a header of 64 bytes, then integers of 2 or 4 bytes."""
    with open(path, "rb") as file:
        data = file.read()
    width, count = struct.unpack_from("<I", data, 16)[0], struct.unpack_from("<Q", data, 24)[0]
    return numpy.frombuffer(data, {2: "<u2", 4: "<u4"}[width], count, 64).astype(numpy.int64)


def compare(expected, path):
    """The file may have one further token at the beginning and at the end of each text."""
    theirs, lengths, ours = numpy.load(expected), numpy.load(expected.replace(".npy", ".lengths.npy")), tokens(path)
    extra, rest = divmod(len(ours) - len(theirs), len(lengths))
    if rest != 0 or not 0 <= extra <= 2:
        sys.exit(f"{len(ours)} ids, expected {len(theirs)} in {len(lengths)} texts")
    for front in range(extra + 1):
        at, wrong, begin = 0, [], 0
        for number, length in enumerate(lengths):
            if (ours[at + front:at + front + length] != theirs[begin:begin + length]).any():
                wrong.append(number)
            at, begin = at + length + extra, begin + length
        if not wrong:
            print(f"{len(lengths)} texts, {len(theirs)} ids")
            return
    sys.exit(f"{len(wrong)} of {len(lengths)} texts have other ids, the first is {wrong[0]}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        compare(sys.argv[2], sys.argv[3])
