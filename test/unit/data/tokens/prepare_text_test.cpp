#include "src/data/text/prepare_text.hpp"

#include "src/data/text/token_stream.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using test::write_bytes;

std::string text_of(const std::string& folder, Split split) {
  const auto stream = TokenStream::open({folder}, TokenFormat::automatic, split);
  for (std::size_t i = 0; i < stream.files().size(); ++i) stream.verify(i, stream.vocab_size());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.count()));
  stream.read(0, stream.count(), ids.data());
  return Vocabulary::load(folder + "/vocab.json").decode(ids);
}

TEST(PrepareText, TextComesBackWhateverTheShards) {
  const ScratchFolder folder;
  const std::string text = "Z\u00fcrich, a\u00e7\u00e3o, \U0001F600!\n";
  write_bytes(folder / "in/b.txt", text);
  write_bytes(folder / "in/a/deep.txt", "first ");
  write_bytes(folder / "in/.hidden", "\xFF");
  for (const auto kind : {VocabularyKind::character, VocabularyKind::byte}) {
    for (const std::int64_t per_shard : {1, 4, 1000}) {
      PrepareOptions options;
      options.tokenizer = kind;
      options.tokens_per_shard = per_shard;
      const auto summary = prepare_text({folder / "in"}, folder / "out", options);
      EXPECT_EQ(summary.files, 2);
      // "first " has 6 characters, the other file 17 characters in 23 bytes.
      const std::int64_t total = kind == VocabularyKind::byte ? 29 : 23;
      EXPECT_EQ(summary.train_tokens, total * 9 / 10);
      EXPECT_EQ(summary.val_tokens, total - total * 9 / 10);
      EXPECT_EQ(summary.train_shards, (summary.train_tokens + per_shard - 1) / per_shard);
      EXPECT_EQ(text_of(folder / "out", Split::train) + text_of(folder / "out", Split::val),
                "first " + text);
      EXPECT_NE(summary.to_string().find("train       "), std::string::npos);
    }
  }
}

TEST(PrepareText, FractionsOfOneAndNought) {
  const ScratchFolder folder;
  write_bytes(folder / "x.txt", "hello");
  PrepareOptions options;
  options.train_fraction = 1;
  EXPECT_EQ(prepare_text({folder / "x.txt"}, folder / "all", options).val_shards, 0);
  options.train_fraction = 0;
  EXPECT_EQ(prepare_text({folder / "x.txt"}, folder / "none", options).train_shards, 0);
  EXPECT_EQ(text_of(folder / "none", Split::val), "hello");
  options.train_fraction = 1.5;
  EXPECT_THROW(prepare_text({folder / "x.txt"}, folder / "out", options), DeckError);
}

TEST(PrepareText, APartThatLeavesNothingForTrainingIsRefused) {
  const ScratchFolder folder;
  write_bytes(folder / "x.txt", "hello");
  PrepareOptions options;
  options.train_fraction = 1e-10;
  try {
    prepare_text({folder / "x.txt"}, folder / "out", options);
    FAIL() << "nothing was refused";
  } catch (const DeckError& error) {
    EXPECT_NE(error.hint().find("data.val_fraction of at most 0.8"), std::string::npos)
        << error.hint();
  }
}

TEST(PrepareText, NamesFileAndByteOfBadText) {
  const ScratchFolder folder;
  const auto prepare = [&](const std::string& bytes) {
    write_bytes(folder / "x.txt", bytes);
    prepare_text({folder / "x.txt"}, folder / "out", {});
  };
  // The text is longer than one read, so that the offset must count through the file.
  const std::string far((std::size_t{1} << 22) - 1, 'a');
  EXPECT_DATA_ERROR(prepare("caf\xE9\n"), "x.txt' is not UTF-8 at byte 3");
  EXPECT_DATA_ERROR(prepare(far + "\u00e9b\xFF"), "is not UTF-8 at byte 4194306");
  EXPECT_DATA_ERROR(prepare("ab\xE2\x82"), "is not UTF-8 at byte 2");
  EXPECT_DATA_ERROR(prepare(""), "is empty");
  EXPECT_DATA_ERROR(prepare_text({folder / "none"}, folder / "out", {}), "cannot open");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(PrepareText, CharactersAcrossPiecesOfReading) {
  const ScratchFolder folder;
  const std::string text = std::string((std::size_t{1} << 22) - 1, 'a') + "\U0001F600z";
  write_bytes(folder / "x.txt", text);
  const auto summary = prepare_text({folder / "x.txt"}, folder / "out", {});
  EXPECT_EQ(summary.train_tokens + summary.val_tokens, (1 << 22) + 1);
  EXPECT_EQ(text_of(folder / "out", Split::train) + text_of(folder / "out", Split::val), text);
}

TEST(PrepareText, AGivenVocabularyIsKept) {
  const ScratchFolder folder;
  write_bytes(folder / "x.txt", "abba");
  const Vocabulary vocabulary = Vocabulary::characters({U'a', U'b', U'c'});
  PrepareOptions options;
  options.vocabulary = &vocabulary;
  EXPECT_EQ(prepare_text({folder / "x.txt"}, folder / "out", options).vocabulary->hash(),
            vocabulary.hash());
  write_bytes(folder / "x.txt", "abd");
  EXPECT_DATA_ERROR(prepare_text({folder / "x.txt"}, folder / "out", options),
                    "'d' (U+0064) at byte 2 of '");
  // The failed run left the data of the run before, and nothing else.
  EXPECT_EQ(text_of(folder / "out", Split::train) + text_of(folder / "out", Split::val), "abba");
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
}

TEST(PrepareText, RefusesAFolderOfOtherThings) {
  const ScratchFolder folder;
  write_bytes(folder / "x.txt", "abc");
  write_bytes(folder / "precious/thesis.txt", "mine");
  EXPECT_DATA_ERROR(prepare_text({folder / "x.txt"}, folder / "precious", {}),
                    "contains files other than prepared data");
  EXPECT_EQ(test::read_bytes(folder / "precious/thesis.txt"), "mine");
}

TEST(PrepareText, TinyShakespeare) {
  const std::string text = "data/shakespeare/input.txt";
  if (!std::filesystem::exists(text)) GTEST_SKIP() << "not here: make data-shakespeare";
  const ScratchFolder folder;
  const auto summary = prepare_text({text}, folder / "out", {});
  EXPECT_EQ(summary.vocabulary->size(), 65);
  EXPECT_EQ(summary.train_tokens, 1003854);
  EXPECT_EQ(summary.val_tokens, 111540);
}

TEST(PrepareText, ALineEndFollowsEachDocument) {
  const ScratchFolder folder;
  write_bytes(folder / "in/a.jsonl",
              "{\"body\": \"Z\u00fcrich\"}\nno row\n{\"body\": \"\"}\n{\"body\": \"two\"}\n");
  write_bytes(folder / "in/b.txt", "plain");
  for (const auto kind : {VocabularyKind::character, VocabularyKind::byte}) {
    PrepareOptions options;
    options.tokenizer = kind;
    options.train_fraction = 1;
    options.field = "body";
    const auto summary = prepare_text({folder / "in"}, folder / "out", options);
    EXPECT_EQ(text_of(folder / "out", Split::train), "Z\u00fcrich\ntwo\nplain");
    EXPECT_EQ(summary.documents, 2);
    for (const char* words : {"documents   2\n", "damaged     1 row left out: not valid JSON 1",
                              "a.jsonl', line 2, column "})
      EXPECT_NE(summary.to_string().find(words), std::string::npos) << summary.to_string();
    EXPECT_NE(test::read_bytes(folder / "out/meta.json").find("\"damaged_rows\": 1"),
              std::string::npos);
  }
  EXPECT_DATA_ERROR(prepare_text({folder / "in/a.jsonl"}, folder / "out", {}),
                    "has a text: 4 rows left out: no field 'text' 3 (first '");
}

}  // namespace
}  // namespace choir
