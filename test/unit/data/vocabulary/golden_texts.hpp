#pragma once
// Texts with every known trap, and their tokens by other tokenizers: the pieces and ids come from
// the original libraries. Only the entries of the vocabularies that these texts can reach are here,
// with the real ids: single bytes, and the merges whose result occurs in a piece.
#include <cstdint>
#include <string>
#include <vector>

namespace choir::test {

struct GoldenText {
  std::string text;
  /// Lengths of the pieces in bytes, without normalisation.
  std::vector<std::size_t> gpt2_pieces, llama3_pieces, qwen2_pieces;
  std::vector<std::int32_t> gpt2, qwen2, smollm2;
};

const std::vector<GoldenText>& golden_texts();

/// A tokenizer.json: "gpt2", "qwen2" or "smollm2".
std::string golden_tokenizer(const std::string& name);

/// A small vocabulary of 23 merges: <|endoftext|> is 0, the bytes are 1 to 256.
std::string tiny_tokenizer();

/// A tokenizer.json around a vocabulary and merges as JSON: it has an added token <|endoftext|>
/// with an id, and GPT-2's splitter or the given `pre_tokenizer` and `normalizer`.
std::string tokenizer_json(const std::string& vocabulary, const std::string& merges,
                           const std::string& added_tokens,
                           const std::string& pre_tokenizer =
                               R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})",
                           const std::string& normalizer = "null",
                           const std::string& post_processor = "null");

}  // namespace choir::test
