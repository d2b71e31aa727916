#include <optional>

#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"
#include "choir/data/tokens/prepare_text.hpp"
#include "choir/data/vocabulary/bpe_training.hpp"
#include "src/data/tokens/text_files.hpp"

namespace choir {

Vocabulary train_text_bpe(Communicator& ranks, const std::vector<std::string>& paths,
                          std::int64_t vocab_size) {
  constexpr std::int64_t kLeast = 257, kMost = std::int64_t{1} << 24;
  BpeTraining training;
  WordCounts counts;
  together(ranks, [&] {
    if (vocab_size < kLeast || vocab_size > kMost)
      throw DeckError(
          fmt::format("a vocabulary of {}", vocab_size),
          fmt::format("--vocab-size from {} (the bytes and <|endoftext|>) to {}", kLeast, kMost));
    training.vocab_size = static_cast<std::int32_t>(vocab_size);
    const PreTokenizer splitter({training.splitter});
    const auto files = find_text_files(paths);
    const auto size = static_cast<std::size_t>(ranks.size());
    for (auto i = static_cast<std::size_t>(ranks.rank()); i < files.size(); i += size) {
      const std::string source = fmt::format("'{}'", files[i].path);
      read_text(files[i], [&](std::string_view text, std::int64_t offset, bool more_follows) {
        return count_words(splitter, text, more_follows, source, offset, counts);
      });
    }
  });
  counts = sum_word_counts(ranks, counts);
  std::optional<Vocabulary> vocabulary;
  together(ranks, [&] {
    const TrainedBpe bpe = train_bpe(counts, training);
    if (std::ssize(bpe.entries) < vocab_size)
      throw DeckError(fmt::format("the text has repeated pairs for {} tokens, not for {}",
                                  std::ssize(bpe.entries), vocab_size),
                      fmt::format("--vocab-size {}, or more text", std::ssize(bpe.entries)));
    vocabulary = Vocabulary::from_json(tokenizer_json_of(bpe, training), "the trained tokenizer");
  });
  return *vocabulary;
}

}  // namespace choir
