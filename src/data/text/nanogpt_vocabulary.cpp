#include "src/data/text/data_files.hpp"

#include <fmt/core.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/store/torch/torch_checkpoint.hpp"

namespace choir {

Vocabulary nanogpt_vocabulary(const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("the vocabulary '{}' {}", path, what),
                    "expected the meta.pkl of nanoGPT's data/shakespeare_char/prepare.py; other "
                    "vocabularies stand in a vocab.json or tokenizer.json beside the tokens");
  };
  const Pickle pickle = read_pickle_file(path);
  const auto* meta = pickle.root().as<PickleDict>();
  const PickleValue* itos = meta == nullptr ? nullptr : meta->find("itos");
  const auto* pieces = itos == nullptr ? nullptr : itos->as<PickleDict>();
  if (pieces == nullptr) refuse("has no dictionary 'itos'");
  std::vector<char32_t> characters(pieces->entries.size());
  for (const auto& [key, value] : pieces->entries) {
    const auto* id = key->as<std::int64_t>();
    const auto* piece = value->as<std::string>();
    if (id == nullptr || piece == nullptr || *id < 0 || *id >= std::ssize(characters))
      refuse("has an entry in 'itos' that is not an id and a text");
    const CodePoint c = first_code_point(*piece);
    if (c.length == 0 || static_cast<std::size_t>(c.length) != piece->size())
      refuse(fmt::format("gives id {} the text '{}', not one character", *id, *piece));
    characters[static_cast<std::size_t>(*id)] = c.value;
  }
  for (std::size_t i = 1; i < characters.size(); ++i)
    if (characters[i - 1] >= characters[i])
      refuse(fmt::format("does not list its characters in sorted order: ids {} and {}", i - 1, i));
  if (characters.empty()) refuse("has no entries");
  return Vocabulary::characters(std::move(characters));
}

Vocabulary vocabulary_beside_tokens(const std::string& path) {
  return path.ends_with(".pkl") ? nanogpt_vocabulary(path) : Vocabulary::load_beside_tokens(path);
}

}  // namespace choir
