// Tests that the ids of texts that ranks encode together are those of each file encoded at once.
#include "src/data/text/text_files.hpp"

#include "choir/comm/mesh/mesh.hpp"
#include "src/data/text/prepare_text.hpp"
#include "src/data/vocabulary/bpe_training.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;

/// Texts that are cut into parts at every point: characters of several bytes followed by marks,
/// blanks in a row, a word that is longer than many parts, an empty file and short ones.
std::vector<std::string> texts() {
  std::string prose, blanks, word;
  for (int i = 0; i < 200; ++i)
    prose += "The " + std::to_string(i * i) + " cafe\u0301s \u65e5\u672c\u8a9e don't;\n\n  sat ";
  for (int i = 0; i < 40; ++i) blanks += "x" + std::string(static_cast<std::size_t>(i), ' ') + "\t";
  for (int i = 0; i < 700; ++i) word += static_cast<char>('a' + i * i % 26);
  return {prose, "", "short", blanks + word + " " + blanks, "\u00e9", prose.substr(7)};
}

Vocabulary bpe(const std::vector<std::string>& of, bool nfc) {
  const BpeTraining training{.vocab_size = 320};
  WordCounts counts;
  for (const std::string& text : of)
    count_words(PreTokenizer({training.splitter}), text, false, "the text", 0, counts);
  std::string json = tokenizer_json_of(train_bpe(counts, training), training);
  const std::string none = "\"normalizer\": null";
  if (nfc) json.replace(json.find(none), none.size(), "\"normalizer\": {\"type\": \"NFC\"}");
  return Vocabulary::from_json(json, "the test");
}

class EncodedText : public testing::Test {
 protected:
  EncodedText()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    ranks().broadcast(&id, sizeof id, 0);
    if (ranks().rank() == 0) folder_ = std::make_unique<ScratchFolder>(id, true);
    ranks().barrier();
    if (ranks().rank() != 0) folder_ = std::make_unique<ScratchFolder>(id, false);
    for (const std::string& text : texts_) write(text);
    ranks().barrier();
  }
  ~EncodedText() override { ranks().barrier(); }

  Communicator& ranks() { return mesh_->along(Axis::data); }
  void write(const std::string& text) {
    files_.push_back(*folder_ / (std::to_string(files_.size()) + ".txt"));
    if (ranks().rank() == 0) test::write_bytes(files_.back(), text);
  }
  TextSource source() const { return TextSource::open(files_, whole_files("text")); }
  std::vector<std::int32_t> encoded(const Vocabulary& vocabulary, std::int64_t part_bytes) {
    std::vector<std::int32_t> ids;
    counts_ = encode_texts(&ranks(), source(), vocabulary, part_bytes,
                           [&](std::span<const std::int32_t> part) {
                             ids.insert(ids.end(), part.begin(), part.end());
                           });
    return ids;
  }

  const std::vector<std::string> texts_ = texts();
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> folder_;
  std::vector<std::string> files_;
  TextCounts counts_;
};

TEST_F(EncodedText, AsInOneGo) {
  for (const bool nfc : {false, true}) {
    const Vocabulary vocabulary = bpe(texts_, nfc);
    std::vector<std::int32_t> expected;
    for (const std::string& text : texts_) {
      const auto ids = vocabulary.encode(text);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    if (ranks().rank() > 0) expected.clear();
    for (const std::int64_t part_bytes : {61, 1000, 6000, 1 << 20})
      EXPECT_ALL_RANKS(encoded(vocabulary, part_bytes) == expected) << part_bytes << " " << nfc;
  }
}

// A character that is cut by the border of two parts is no error; a real error is reported with its
// position, on all ranks.
TEST_F(EncodedText, NamesBrokenTexts) {
  const Vocabulary vocabulary = bpe(texts_, false);
  const std::string text = texts_[0] + "\xff" + texts_[0];
  write(text);
  ranks().barrier();
  for (const std::int64_t part_bytes : {61, 4000}) {
    std::string what;
    try {
      encoded(vocabulary, part_bytes);
    } catch (const DataError& error) {
      what = error.what();
    }
    EXPECT_ALL_RANKS(what.find(files_.back()) != std::string::npos) << what;
    EXPECT_ALL_RANKS(what.find(std::to_string(texts_[0].size())) != std::string::npos) << what;
  }
}

// Documents between plain texts: each has the end of a document behind it, and the counts of all
// ranks are those of one.
TEST_F(EncodedText, DocumentsAreDividedByUnits) {
  const Vocabulary vocabulary = bpe(texts_, false);
  const std::int32_t end = vocabulary.end_of_text().value();
  std::vector<std::int32_t> expected;
  const auto expect = [&](const std::string& text) {
    const auto ids = vocabulary.encode(text);
    expected.insert(expected.end(), ids.begin(), ids.end());
  };
  for (const std::string& text : texts_) expect(text);
  for (int file = 0; file < 5; ++file) {
    std::string lines;
    for (int i = 0; i < 7 * file; ++i) {
      const std::string text = "Don't " + std::to_string(file * i) + "  sit.";
      lines += i % 5 == 3 ? "{\"text\": 7}\n" : "{\"text\": \"" + text + "\"}\n";
      if (i % 5 != 3) expect(text), expected.push_back(end);
    }
    files_.push_back(*folder_ / ("lines_" + std::to_string(file) + ".jsonl"));
    if (ranks().rank() == 0) test::write_bytes(files_.back(), lines);
  }
  write(texts_[0]);
  expect(texts_[0]);
  ranks().barrier();
  if (ranks().rank() > 0) expected.clear();
  for (const std::int64_t part_bytes : {61, 1000, 1 << 20}) {
    EXPECT_ALL_RANKS(encoded(vocabulary, part_bytes) == expected) << part_bytes;
    if (ranks().rank() > 0) continue;
    EXPECT_EQ(counts_.documents, 70 - 13);
    EXPECT_EQ(counts_.damaged.count(), 13);
    EXPECT_NE(counts_.damaged.to_string().find("lines_1.jsonl', line 4"), std::string::npos);
  }
}

TEST_F(EncodedText, WhatTheFirstRankCannotWriteIsSaidByAll) {
  const Vocabulary vocabulary = bpe(texts_, false);
  bool refused = false;
  try {
    encode_texts(&ranks(), source(), vocabulary, 100,
                 [](std::span<const std::int32_t>) { throw StorageError("the disk is full"); });
  } catch (const StorageError&) {
    refused = true;
  }
  EXPECT_ALL_RANKS(refused);
}

}  // namespace
}  // namespace choir
