#include "src/data/corpora/corpus_preparation.hpp"

#include "choir/core/error.hpp"
#include "src/core/hash.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/speech/label_file.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using test::write_bytes;

/// The part of a folder of packed audio that labels need: an index and its manifest.
void pack(const ScratchFolder& folder, const std::vector<std::string>& texts) {
  std::string manifest;
  std::vector<AudioCatalog::Utterance> utterances;
  for (const std::string& text : texts) {
    const std::string line = "{\"text\":\"" + text + "\"}";
    AudioCatalog::Utterance u;
    u.samples = 32;
    u.first = static_cast<std::int64_t>(utterances.size()) * 32;
    u.line = static_cast<std::int64_t>(manifest.size());
    u.line_bytes = static_cast<std::int32_t>(line.size());
    u.text_letters = static_cast<std::int32_t>(text.size());
    utterances.push_back(u);
    manifest += line + "\n";
  }
  write_bytes(folder / "manifest.jsonl", manifest);
  AudioCatalog::write(folder.path(), 16000, 1, utterances,
                      static_cast<std::int64_t>(manifest.size()),
                      crc32c(manifest.data(), manifest.size()));
}

std::vector<std::string> many(std::size_t texts, const std::string& last) {
  std::vector<std::string> all(texts, "abba");
  all.back() = last;
  return all;
}

const Vocabulary& letters() {
  static const Vocabulary units = train_vocabulary({.type = "char"}, {"ab"});
  return units;
}

TEST(CorpusLabels, AreTheTextsInUnits) {
  const ScratchFolder folder;
  pack(folder, {"ab", "", "bba"});
  const LabelSummary summary = write_labels(folder.path(), letters(), "char", OnBad::stop);
  EXPECT_EQ(summary.utterances, 3);
  EXPECT_EQ(summary.without_text, 1);
  EXPECT_EQ(summary.bad, 0);
  EXPECT_EQ(summary.ids, 5);
  const AudioCatalog catalog = AudioCatalog::open(folder.path());
  const LabelFile labels = LabelFile::open(folder.path(), "char", catalog.hash());
  ASSERT_EQ(labels.size(), 3);
  EXPECT_EQ(labels.vocab_size(), 2);
  EXPECT_EQ(labels.tokenizer_hash(), letters().hash());
  EXPECT_EQ(std::vector<std::int32_t>(labels[2].begin(), labels[2].end()),
            (std::vector<std::int32_t>{1, 1, 0}));
  EXPECT_TRUE(labels[1].empty());
  EXPECT_FALSE(labels.bad(1));
  EXPECT_EQ(Vocabulary::load(units_path(folder.path(), "char")).hash(), letters().hash());
}

TEST(CorpusLabels, BadTextsStop) {
  const ScratchFolder folder;
  pack(folder, many(200, "ayxb"));
  const std::string said =
      test::data_error_of([&] { write_labels(folder.path(), letters(), "char", OnBad::stop); });
  EXPECT_NE(said.find("1 of 200 utterances of '" + folder.path() +
                      "' have characters outside the vocabulary: x y\n"
                      "  line 200: 'y' (U+0079) in \"ayxb\""),
            std::string::npos)
      << said;
  EXPECT_FALSE(std::filesystem::exists(folder / "labels.char.bin"));
}

TEST(CorpusLabels, OnlyCapitalsAreAMatterOfCase) {
  const ScratchFolder folder;
  pack(folder, {"ab", "Ab"});
  const auto hint = [&] {
    try {
      write_labels(folder.path(), letters(), "char", OnBad::stop);
    } catch (const DataError& error) {
      return error.hint();
    }
    return std::string();
  };
  EXPECT_NE(hint().find("--lower-case"), std::string::npos) << hint();
  pack(folder, {"ab", "Abx"});
  EXPECT_EQ(hint().find("--lower-case"), std::string::npos) << hint();
}

TEST(CorpusLabels, AHundredthOfBadTextsMayBeSkipped) {
  const ScratchFolder folder;
  pack(folder, many(100, "axb"));
  const LabelSummary summary = write_labels(folder.path(), letters(), "char", OnBad::skip);
  EXPECT_EQ(summary.bad, 1);
  EXPECT_EQ(summary.ids, 99 * 4);
  const AudioCatalog catalog = AudioCatalog::open(folder.path());
  const LabelFile labels = LabelFile::open(folder.path(), "char", catalog.hash());
  EXPECT_TRUE(labels.bad(99));
  EXPECT_FALSE(labels.bad(98));
  pack(folder, many(99, "axb"));  // 1 of 99 is more than 1 %
  EXPECT_DATA_ERROR(write_labels(folder.path(), letters(), "char", OnBad::skip),
                    "more than the 1 % that --on-bad skip leaves out");
}

TEST(CorpusLabels, FiveBadTextsAreNamed) {
  const ScratchFolder folder;
  pack(folder, {"1", "2", "3", "4", "5", "6"});
  const std::string said =
      test::data_error_of([&] { write_labels(folder.path(), letters(), "char", OnBad::stop); });
  EXPECT_NE(said.find("line 5: '5'"), std::string::npos) << said;
  EXPECT_EQ(said.find("line 6"), std::string::npos) << said;
}

TEST(CorpusLabels, RefuseWhatTheyDoNotKnow) {
  const ScratchFolder folder;
  EXPECT_THROW(write_labels(folder.path(), letters(), "char", OnBad::stop), DataError);
  pack(folder, {"ab"});
  EXPECT_THROW(write_labels(folder.path(), letters(), "a/b", OnBad::stop), DeckError);
  EXPECT_EQ(on_bad_of("skip", "--on-bad"), OnBad::skip);
  EXPECT_THROW(on_bad_of("drop", "--on-bad"), DeckError);
}

}  // namespace
}  // namespace choir
