// Fuzzes tokenizer.json files: an accepted input is used on texts with every trap.
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/bpe_tokenizer.hpp"
#include "src/data/vocabulary/bpe_training.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

const std::string kText =
    "the king's horse, 12345 \u00bd  \r\n\n 'LL e\u0301\u212b \u0928\u092e\u0938\u094d "
    "<|endoftext|> \U0001F600\u3000x <s>\t";

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const Splitter splitter : {Splitter::gpt2, Splitter::llama3, Splitter::qwen2}) {
    WordCounts counts;
    count_words(PreTokenizer({splitter}), kText + kText, false, "seed", 0, counts);
    const BpeTraining training{.vocab_size = 270, .splitter = splitter};
    all.push_back(tokenizer_json_of(train_bpe(counts, training), training));
  }
  auto rich = parsed_json(all.back());
  rich["normalizer"] = {{"type", "NFC"}};
  rich["model"]["ignore_merges"] = true;
  rich["added_tokens"].push_back({{"id", 270}, {"content", "<s>"}, {"lstrip", true}});
  rich["added_tokens"].push_back(
      {{"id", 271}, {"content", "x"}, {"single_word", true}, {"rstrip", true}});
  rich["post_processor"] = parsed_json(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[270],"tokens":["<s>"]}}})");
  all.push_back(dumped(rich));
  return all;
}

void try_input(std::string_view input) {
  accepted([&] {
    const BpeTokenizer tokenizer = BpeTokenizer::from_json(std::string(input), "fuzz");
    require(tokenizer.json() == input, "another text than was read");
    PieceCache cache;
    const auto ids = tokenizer.encode(kText, cache, {.around = true});
    whole_utf8(tokenizer.decode(ids));
    std::vector<std::int32_t> parts(tokenizer.prefix().begin(), tokenizer.prefix().end());
    std::size_t done = 0;
    for (std::size_t end = 0; end < kText.size(); end += 5)
      done += tokenizer.encode_part(std::string_view(kText).substr(done, end - done), true, "fuzz",
                                    0, cache, parts);
    tokenizer.encode_part(std::string_view(kText).substr(done), false, "fuzz", 0, cache, parts);
    parts.insert(parts.end(), tokenizer.suffix().begin(), tokenizer.suffix().end());
    require(parts == ids, "other ids for a text in parts");
  });
}

}  // namespace choir::fuzz
