#pragma once
// GGUF files: conversion between their metadata and the configuration of a GPT, their scaling of
// rotary angles, and their tokenizers. Llama 3's scaling is a tensor with the divisor of the
// frequency of each pair; only files of this program have keys that describe its origin. The two
// lists of longrope are tensors, too.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/rope/rope.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/deck/key_reader.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/tokenizer_settings.hpp"
#include "src/store/gguf/gguf.hpp"

namespace choir {

inline constexpr std::string_view kGgufDivisors = "rope_freqs.weight",
                                  kGgufLongFactors = "rope_factors_long.weight",
                                  kGgufShortFactors = "rope_factors_short.weight";

/// [width / 2] for the features that rotate; empty unless angles are scaled in this form. Pure.
std::vector<float> gguf_divisors(double theta, const ops::RopeScaling& scaling, std::int64_t width);

/// The tensors of the angles of a model: its divisors, the factors of longrope, or none. Pure.
std::vector<std::pair<std::string, std::vector<float>>> gguf_angle_tensors(const GptConfig& config);

/// A scaling with these divisors, with `low` = 1: only the ratios of `original`, `low` and `high`
/// matter. If fewer than two pairs lie between the two wavelengths, the ratios are not unique, and
/// any that give these divisors are returned. None if the divisors have another form. Pure.
std::optional<ops::RopeScaling> scaling_of_divisors(double theta, std::span<const float> divisors);

/// True for YaRN as llama.cpp computes it, with whole lengths. The ends of its ramp are those of
/// the paper, unless the architecture `has_ends` in its files.
bool is_gguf_yarn(const ops::RopeScaling& scaling, bool has_ends);
/// Reads the scaling that llama.cpp describes by keys, and the one that it has as tensors, which
/// appends a problem if they have another form. For longrope the keys of its lengths and its factor
/// are read already.
void read_gguf_scaling(KeyReader& keys, GptConfig& c);
void read_gguf_divisors(const GgufReader& reader, GptConfig& c, std::vector<std::string>& problems);
void read_gguf_longrope(const GgufReader& reader, GptConfig& c, std::vector<std::string>& problems);
/// Adds the keys of a scaling; `prefix` is that of the architecture.
void add_gguf_scaling(GgufMetadata& metadata, const ops::RopeScaling& scaling,
                      const std::string& prefix);

/// DeckError that lists every key whose value is unsupported or unknown, by its name.
ForeignModel model_from_gguf(const GgufReader& reader, bool allow_unknown);

/// The dialect that can express the model. The DeckError for other models names the keys that
/// prevent it.
Dialect gguf_dialect_of(const GptConfig& config);
/// All metadata except the tokenizer. `type` of the matrices (gguf_stored_type()): f32, f16, bf16,
/// q8_0, q5_0 or q4_k.
GgufMetadata gguf_metadata(const GptConfig& config, Encoding type, const std::string& name);
/// Gemma's factor of scores is not in the file: a factor other than llama.cpp's becomes one of the
/// queries, or of their norm, in the parts that are written.
void fold_score_scale(const GptConfig& config, std::vector<TensorPart>& parts);
/// llama.cpp's encoding of this tensor in a file of that type: norms and biases are always float,
/// and so are rows that are not whole blocks. In a file of q4_k the head, which is the embedding of
/// a tied model, is q6_k, or q8_0 where its rows are not whole blocks of q6_k; other rows that are
/// not whole blocks of q4_k are q5_0 if they can be.
Encoding gguf_encoding(const TensorPart& part, Encoding type, bool tied);

/// The number of matrices in each encoding of a file of that type. Pure.
std::map<Encoding, std::int64_t> gguf_matrices(const std::vector<TensorPart>& parts, Encoding type,
                                               bool tied);
/// The type under which the file stores its matrices: `type` if it has one such matrix, otherwise
/// the one that most of them have. Pure.
Encoding gguf_stored_type(const std::map<Encoding, std::int64_t>& matrices, Encoding type);

/// True if a GGUF file has a tokenizer, and its metadata without those of the model.
bool has_tokenizer(const GgufMetadata& metadata);
GgufMetadata tokenizer_of(const GgufMetadata& metadata);
/// The tokenizer of a vocabulary (Vocabulary::to_json()). One of characters or bytes becomes
/// SentencePiece's kind, which llama.cpp runs without merges. "": metadata of a model without a
/// tokenizer.
GgufMetadata tokenizer_of_vocabulary(const std::string& vocabulary, std::int64_t vocab_size);

/// The metadata with these control tokens in the place of unused ones.
GgufMetadata with_control_tokens(const GgufMetadata& tokenizer,
                                 const std::vector<SpecialToken>& tokens);

/// Returns text for Vocabulary::from_json(): a tokenizer.json for kind "gpt2", a SentencePiece
/// model for kind "llama". DataError with `source` for other kinds, for unknown rules of splitting
/// text, and for tables that contradict one another.
std::string vocabulary_of_gguf(const GgufMetadata& metadata, const std::string& source);

/// Returns llama.cpp's metadata, without the tokens that begin and end a text. DeckError for models
/// that do not use byte pairs.
GgufMetadata gguf_of_sentencepiece(const Vocabulary& vocabulary, std::int64_t vocab_size);

}  // namespace choir
