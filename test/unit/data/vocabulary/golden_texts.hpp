#pragma once
// Texts with every trap that is known, and what the tokenizers of the outside world make of them:
// their own libraries gave the pieces and ids. Of the vocabularies only what these texts can reach
// is here, with the real ids: single bytes, and the merges whose result occurs in a piece.
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

/// Around a vocabulary and merges as JSON: an added token <|endoftext|> with an id, GPT-2's
/// splitter, or what `pre_tokenizer` and `normalizer` say.
std::string tokenizer_json(const std::string& vocabulary, const std::string& merges,
                           const std::string& added_tokens,
                           const std::string& pre_tokenizer =
                               R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})",
                           const std::string& normalizer = "null",
                           const std::string& post_processor = "null");

}  // namespace choir::test
