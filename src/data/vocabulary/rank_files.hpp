#pragma once
// Vocabularies of byte pairs as lists of ranks: *.tiktoken (lines of a token in base64 and its
// rank) and tekken.json of Mistral. Of all neighbours in a piece, those whose joined bytes have the
// lowest rank are joined. Both become the tokenizer.json that gives the same ids. Local.

#include <string>
#include <string_view>

namespace choir {

/// True if the first line is a token in base64 and its rank.
bool is_tiktoken_file(std::string_view text);
/// True for a tekken.json. It does not parse the text.
bool is_tekken_file(std::string_view text);

/// A .tiktoken file has neither the expression that splits text nor the control tokens. They are
/// known for the published vocabularies, which differ in their number of ranks: gpt2 (r50k_base),
/// cl100k_base, o200k_base, Llama 3, and Qwen. Throws DataError for another number, and with the
/// line for a damaged file.
std::string tokenizer_json_of_tiktoken(std::string_view text, const std::string& source);

/// The ids are those of mistral-common: first default_num_special_tokens control tokens, then the
/// ranks, default_vocab_size in all. Throws DataError.
std::string tokenizer_json_of_tekken(const std::string& text, const std::string& source);

}  // namespace choir
