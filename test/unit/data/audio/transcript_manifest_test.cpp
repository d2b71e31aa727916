#include "src/data/audio/transcripts.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace choir::test {
namespace {

class Manifest : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "transcript_manifest_test.json";
  ~Manifest() override { std::filesystem::remove(path_); }
  std::vector<TranscriptRequest> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_transcript_manifest(path_, {});
  }
};

TEST_F(Manifest, LinesBecomeRequests) {
  const auto list = read(
      R"({"audio_filepath":"/a.wav","offset":1.5,"duration":2,"text":"so it is","speaker":[1]})"
      "\n\n"
      R"({"audio_filepath":"b.wav","channel":1})"
      "\n");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].source.path, "/a.wav");
  EXPECT_EQ(list[0].source.offset, 1.5);
  EXPECT_EQ(list[0].source.duration, 2);
  EXPECT_EQ(list[0].text, "so it is");
  EXPECT_EQ(list[1].place, path_ + ":3");
  EXPECT_EQ(list[1].source.path, std::filesystem::path(path_).parent_path().string() + "/b.wav");
  EXPECT_LT(list[1].source.duration, 0);
  EXPECT_EQ(list[1].source.channel.value, 1);
  EXPECT_FALSE(list[1].text.has_value());
}

TEST_F(Manifest, BadLinesCarryTheirFault) {
  const auto list = read(
      "nonsense\n"
      R"({"audio_filepath":"a.wav","offset":-1})"
      "\n"
      R"({"audio_filepath":"http://a/b.wav"})"
      "\n"
      R"({"duration":1})"
      "\n");
  ASSERT_EQ(list.size(), 4u);
  const AudioFault expected[] = {AudioFault::not_json, AudioFault::bad_line, AudioFault::refused,
                                 AudioFault::bad_line};
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(list[i].fault.has_value()) << i;
    EXPECT_EQ(list[i].fault->fault(), expected[i]) << i;
  }
  EXPECT_THROW(read("\n"), DataError);
  EXPECT_THROW(read_transcript_manifest(path_ + ".none", {}), DataError);
}

TEST_F(Manifest, LinesKeepTheirKeysInOrder) {
  const auto list =
      read(R"({"speaker":{"n":3},"audio_filepath":"a.wav","text":"x","duration":2.50})");
  const Transcript heard{
      .text = "y z", .words = {{"y", 0.08, 0.1604}, {"z", 1, 2}}, .seconds = 2.5};
  EXPECT_EQ(transcript_line(list[0], heard),
            R"({"speaker":{"n":3},"audio_filepath":"a.wav","text":"x","duration":2.5,)"
            R"("pred_text":"y z","words":[{"word":"y","start":0.08,"end":0.16},)"
            R"({"word":"z","start":1.0,"end":2.0}]})");
  const Transcript bad{.fault = "empty: it is"};
  EXPECT_EQ(transcript_line(read("nonsense")[0], bad),
            R"({"line":"nonsense","pred_text":"","words":[],"error":"empty: it is"})");
}

TEST_F(Manifest, TranscriptsTravel) {
  const Transcript sent{.text = "a\nü",
                        .words = {{"a", 0.1, 1.0 / 3}},
                        .seconds = 1e4,
                        .fault = "f",
                        .note = "\"n\""};
  const Transcript received = transcript_of(serialise(sent));
  EXPECT_EQ(received.text, sent.text);
  EXPECT_EQ(received.words, sent.words);
  EXPECT_EQ(received.seconds, sent.seconds);
  EXPECT_EQ(received.fault, sent.fault);
  EXPECT_EQ(received.note, sent.note);
}

}  // namespace
}  // namespace choir::test
