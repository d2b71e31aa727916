// Manifests of folders of recordings, and lower case.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

/// A WAV of 16-bit samples at 8 kHz.
std::string wav(int samples) {
  const auto number = [](std::uint32_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
    return text;
  };
  const auto bytes = static_cast<std::uint32_t>(2 * samples);
  return "RIFF" + number(36 + bytes, 4) + "WAVEfmt " + number(16, 4) + number(1, 2) + number(1, 2) +
         number(8000, 4) + number(16000, 4) + number(2, 2) + number(16, 2) + "data" +
         number(bytes, 4) + std::string(bytes, '\1');
}

class FolderManifest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) {
    test::write_bytes(folder_ / name, bytes);
  }
  FolderManifestSummary write(const FolderManifestOptions& options = {}) {
    return write_folder_manifest({folder_ / "sound"}, folder_ / "made/manifest.json", options);
  }
  std::string refusal(const FolderManifestOptions& options = {}) {
    try {
      write(options);
      return "accepted";
    } catch (const DataError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
  }
  std::vector<nlohmann::json> lines() {
    std::istringstream text(test::read_bytes(folder_ / "made/manifest.json"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  test::ScratchFolder folder_;
};

TEST_F(FolderManifest, HasEveryRecordingWithItsText) {
  put("sound/b.wav", wav(4000));
  put("sound/b.txt", "\xef\xbb\xbfHallo  \xc3\x84rzte\r\nin Wien\n");
  put("sound/sub/84-1.WAV", wav(12000));
  put("sound/sub/84.trans.txt", "84-1 GOOD MORNING\n84-2 NOT THERE\n");
  put("sound/notes.md", "no recording");
  const FolderManifestSummary summary = write();
  EXPECT_EQ(summary.recordings, 2);
  EXPECT_DOUBLE_EQ(summary.seconds, 2.0);
  EXPECT_EQ(summary.unused_texts, 1);
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[0]["text"], "Hallo \xc3\x84rzte in Wien");
  EXPECT_EQ(lines()[0]["duration"], 0.5);
  EXPECT_EQ(lines()[1]["text"], "GOOD MORNING");
  const AudioManifest read = read_audio_manifests({folder_ / "made/manifest.json"}, {});
  EXPECT_EQ(read.entries.size(), 2u);
  EXPECT_TRUE(read.left_out.empty());
  write({.lower_case = true});
  EXPECT_EQ(lines()[0]["text"], "hallo \xc3\xa4rzte in wien");
  EXPECT_EQ(lines()[1]["text"], "good morning");
}

TEST_F(FolderManifest, PathsAreRelativeWhereTheManifestIsAbove) {
  put("sound/b.wav", wav(80)), put("sound/b.txt", "b");
  write();
  EXPECT_EQ(lines()[0]["audio_filepath"], folder_ / "sound/b.wav");
  write_folder_manifest({folder_ / "sound"}, folder_ / "manifest.json", {});
  EXPECT_NE(test::read_bytes(folder_ / "manifest.json").find("\"sound/b.wav\""), std::string::npos);
}

TEST_F(FolderManifest, FaultsAreNamed) {
  EXPECT_NE(refusal().find("no such folder"), std::string::npos);
  put("sound/a.txt", "a");
  EXPECT_NE(refusal().find("no recording is below"), std::string::npos);
  put("sound/a.wav", wav(80)), put("sound/b.wav", wav(80));
  EXPECT_NE(refusal().find("1 of 2 recordings have no text, first "), std::string::npos);
  EXPECT_NE(refusal().find("sound/b.txt; --allow-missing"), std::string::npos) << refusal();
  EXPECT_EQ(write({.untexted = true}).without_text, 1);
  put("sound/b.txt", "\xff");
  EXPECT_NE(refusal().find("b.txt' is not UTF-8"), std::string::npos);
  put("sound/b.txt", "b"), put("sound/b.flac", "fLaC");
  EXPECT_NE(refusal().find("have one text"), std::string::npos);
  std::filesystem::remove(folder_ / "sound/b.wav");
  EXPECT_NE(refusal().find("b.flac: "), std::string::npos) << refusal();
  put("sound/x.trans.txt", "a another text\n");
  EXPECT_NE(refusal().find("has a second text"), std::string::npos);
}

TEST(LowerCase, FollowsUnicode) {
  EXPECT_EQ(lower_case("ABC \xc3\x84\xc3\x96 \xce\xa3 \xd0\x96 \xf0\x90\x90\x80 1"),
            "abc \xc3\xa4\xc3\xb6 \xcf\x83 \xd0\xb6 \xf0\x90\x90\xa8 1");
  EXPECT_EQ(lower_case("\xff\xc3 A"), "\xff\xc3 a") << "bytes that are no text stay";
  EXPECT_EQ(lower_case(""), "");
}

TEST_F(FolderManifest, LinesOfManifestsAreCopied) {
  put("old/m.json",
      "{\"audio_filepath\": \"a.wav\", \"duration\": 1.5, \"text\": \"ONE Two\", \"x\": 3}\n\n");
  const auto copy = [&](const FolderManifestOptions& options) {
    return write_folder_manifest({folder_ / "old/m.json"}, folder_ / "made/manifest.json", options);
  };
  EXPECT_EQ(copy({}).recordings, 1);
  EXPECT_EQ(lines()[0]["text"], "ONE Two");
  EXPECT_DOUBLE_EQ(copy({.lower_case = true}).seconds, 1.5);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["text"], "one two");
  EXPECT_EQ(lines()[0]["audio_filepath"], folder_ / "old/a.wav");
  EXPECT_EQ(lines()[0]["x"], 3);
  put("old/m.json", "{\"audio_filepath\": \"a.wav\"}\n");
  EXPECT_THROW(copy({}), DataError);
  put("old/a.wav", wav(4000));
  put("old/m.json", "{\"audio_filepath\": \"a.wav\", \"text\": \"one\"}\n");
  EXPECT_EQ(copy({}).measured, 1);
  EXPECT_DOUBLE_EQ(lines()[0]["duration"], 0.5);
}

TEST_F(FolderManifest, CutsBecomeLinesOfNemo) {
  put("old/cuts.jsonl", R"({"id": "c1", "start": 0.25, "duration": 0.5, "channel": 0,
"supervisions": [{"id": "s", "start": 0, "duration": 0.5, "text": "ONE"}], "type": "MonoCut",
"recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
"sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}})");
  std::string cut = test::read_bytes(folder_ / "old/cuts.jsonl");
  std::ranges::replace(cut, '\n', ' ');
  put("old/cuts.jsonl", cut);
  write_folder_manifest({folder_ / "old/cuts.jsonl"}, folder_ / "made/manifest.json",
                        {.lower_case = true});
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["audio_filepath"], folder_ / "old/a.wav");
  EXPECT_DOUBLE_EQ(lines()[0]["offset"], 0.25);
  EXPECT_DOUBLE_EQ(lines()[0]["duration"], 0.5);
  EXPECT_EQ(lines()[0]["text"], "one");
}

}  // namespace
}  // namespace choir
