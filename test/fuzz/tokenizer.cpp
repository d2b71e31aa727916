// Fuzzes vocabularies and tokenizer models: our own JSON ('j'; its hash is corrected if it has
// one), SentencePiece's binary form ('s').
#include <regex>

#include "src/data/vocabulary/vocabulary.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

const std::vector<std::string>& sentences() {
  static const std::vector<std::string> all{
      "the king and his horse ride over a hill", "who goes there no one but me my lord",
      "we shall meet again when wind and rain have blown away", "quick jump by the fox"};
  return all;
}

/// Opens a tokenizer.json. A text with no other fault than a wrong hash is given the right one.
Vocabulary opened(std::string json) {
  try {
    return Vocabulary::from_json(json, "fuzz");
  } catch (const DataError& error) {
    static const std::regex named("hash to ([0-9a-f]{16}), it says \"([^\"]*)\"");
    std::cmatch said;
    if (!std::regex_search(error.what(), said, named) || said.length(2) == 0) throw;
    const std::size_t at = json.find(said.str(2));
    if (at == std::string::npos) throw;
    return Vocabulary::from_json(
        json.replace(at, static_cast<std::size_t>(said.length(2)), said.str(1)), "fuzz");
  }
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all{"j" + Vocabulary::bytes().to_json(),
                               "j" + Vocabulary::characters({'a', 'b', 0xe9, 0x1f600}).to_json()};
  for (const char* type : {"bpe", "unigram"}) {
    const Vocabulary units = train_vocabulary({type, 40}, sentences());
    all.push_back("j" + units.to_json());
    units.save(scratch() + "/seed.model");
    all.push_back("s" + read_bytes(scratch() + "/seed.model"));
  }
  return all;
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  accepted([&] {
    const Vocabulary units = input.front() == 'j'
                                 ? opened(std::string(input.substr(1)))
                                 : Vocabulary::load(put("a.model", input.substr(1)));
    require(units.hash() != 0, "a hash of 0");
    for (const std::string& sentence : sentences()) {
      const Vocabulary::Encoded encoded = units.try_encode(sentence);
      units.decode(encoded.ids);
    }
    units.try_encode("\xff\xc3 \xf0\x9f\x98\x80");
    for (std::int32_t id = 0; id < std::min(units.size(), 300); ++id) units.piece(id);
    Vocabulary::from_json(units.to_json(), "fuzz");
  });
}

}  // namespace choir::fuzz
