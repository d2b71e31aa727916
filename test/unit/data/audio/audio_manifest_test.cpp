#include "src/data/audio/audio_manifest.hpp"

#include <gtest/gtest.h>

#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using test::write_bytes;

class ManifestOnDisk : public testing::Test {
 protected:
  AudioManifest read(const std::string& lines, ManifestOptions options = {}) {
    write_bytes(folder_ / "m.jsonl", lines);
    return read_audio_manifests({folder_ / "m.jsonl"}, options);
  }
  // The reason and the detail for the only line that is left out.
  std::string why(const std::string& line, ManifestOptions options = {}) {
    const AudioManifest manifest = read(line + "\n", options);
    if (manifest.left_out.size() != 1 || !manifest.entries.empty()) return "it is fine";
    EXPECT_TRUE(manifest.left_out[0].bad);
    EXPECT_EQ(manifest.left_out[0].place, (folder_ / "m.jsonl") + ":1");
    return manifest.left_out[0].reason + ": " + manifest.left_out[0].detail;
  }
  ScratchFolder folder_;
};

TEST_F(ManifestOnDisk, LinesOfNemo) {
  const AudioManifest m = read(
      R"({"audio_filepath":"a/b.wav","duration":3.25,"text":"Grüße","lang":"de","x":[1,{"y":2}]})"
      "\r\n\n"
      R"({"audio_filepath":"/abs.flac","duration":1,"offset":2.5,"sampling_rate":8000})"
      "\n"
      R"({"id":"own","audio_filepath":"c.ogg","duration":1,"offset":null,"text":null})");
  ASSERT_EQ(m.entries.size(), 3u);
  EXPECT_TRUE(m.left_out.empty());
  EXPECT_EQ(m.without_text, 2);
  const AudioEntry& a = m.entries[0];
  EXPECT_EQ(a.place, (folder_ / "m.jsonl") + ":1");
  EXPECT_EQ(a.path, folder_ / "a/b.wav");
  EXPECT_EQ(a.id, "a/b.wav");
  EXPECT_TRUE(a.whole);
  EXPECT_EQ(a.text_letters, 5);
  EXPECT_EQ(a.channel, -1);
  EXPECT_EQ(a.line(3.125), R"({"id":"a/b.wav","text":"Grüße","duration":3.125,"lang":"de",)"
                           R"("audio_filepath":"a/b.wav","x":[1,{"y":2}]})");
  const AudioEntry& b = m.entries[1];
  EXPECT_EQ(b.place, (folder_ / "m.jsonl") + ":3");
  EXPECT_EQ(b.path, "/abs.flac");
  EXPECT_EQ(b.id, "/abs.flac@2.5");
  EXPECT_FALSE(b.whole);
  EXPECT_EQ(b.offset, 2.5);
  EXPECT_EQ(b.rate, 8000);
  EXPECT_EQ(m.entries[2].id, "own");
  EXPECT_TRUE(m.entries[2].whole);
}

// The names are those that `choir prepare manifest` renames; NeMo reads "normalized_text", too.
TEST_F(ManifestOnDisk, TextsUnderOtherNamesAreTaken) {
  for (const char* key : {"normalized_text", "transcript", "sentence"}) {
    const AudioManifest m =
        read(fmt::format(R"({{"audio_filepath":"a.wav","duration":1,"{}":"one"}})", key));
    ASSERT_EQ(m.entries.size(), 1u) << key;
    EXPECT_EQ(m.without_text, 0) << key;
    EXPECT_EQ(m.entries[0].line(1), R"({"id":"a.wav","text":"one","duration":1.0,)"
                                    R"("audio_filepath":"a.wav"})");
  }
  const AudioManifest both =
      read(R"({"audio_filepath":"a.wav","duration":1,"text":"one","transcript":"two"})");
  EXPECT_NE(both.entries[0].line(1).find(R"("text":"one")"), std::string::npos);
  EXPECT_EQ(why(R"({"audio_filepath":"a.wav","duration":1,"text_filepath":"a.txt"})"),
            "bad line: its text is in a file, \"text_filepath\"");
}

TEST_F(ManifestOnDisk, ChannelsAndIntegerIdsOfNemoAreRead) {
  const AudioManifest m = read(R"({"audio_filepath":"s.wav","duration":1,"channel":1,"id":42})");
  ASSERT_EQ(m.entries.size(), 1u);
  EXPECT_EQ(m.entries[0].channel, 1);
  EXPECT_EQ(m.entries[0].id, "42");
  EXPECT_EQ(why(R"({"audio_filepath":"s.wav","duration":1,"channel":-1})"),
            "bad line: \"channel\" is -1; channels count from 0");
  EXPECT_EQ(why(R"({"audio_filepath":"s.wav","duration":1,"id":[1]})"),
            "bad line: \"id\" is neither a string nor an integer");
  EXPECT_EQ(why(R"({"audio_filepath":"s.wav","duration":null})"),
            "bad line: its \"duration\" is null, and seconds are needed");
}

// The integer would lose digits as a floating-point number in the packed manifest.
TEST_F(ManifestOnDisk, IntegersBeyond64BitsAreRefused) {
  EXPECT_EQ(why(R"({"audio_filepath":"s.wav","duration":1,"key":123456789012345678901})"),
            "bad line: column 46: the integer 123456789012345678901 has more than 64 bits");
  const AudioManifest m =
      read(R"({"audio_filepath":"s.wav","duration":1,"key":18446744073709551615})");
  ASSERT_EQ(m.entries.size(), 1u);
  EXPECT_NE(m.entries[0].line(1).find("\"key\":18446744073709551615"), std::string::npos);
}

TEST_F(ManifestOnDisk, SkipmeIsObeyedAndListed) {
  const AudioManifest m = read(R"({"audio_filepath":"a.wav","duration":2,"_skipme":true})"
                               "\n"
                               R"({"audio_filepath":"b.wav","duration":2,"_skipme":false})");
  ASSERT_EQ(m.entries.size(), 1u);
  EXPECT_EQ(m.entries[0].id, "b.wav");
  ASSERT_EQ(m.left_out.size(), 1u);
  EXPECT_EQ(m.left_out[0].reason, "_skipme");
  EXPECT_EQ(m.left_out[0].duration, 2);
  EXPECT_FALSE(m.left_out[0].bad);
}

TEST_F(ManifestOnDisk, BadLinesAreNamed) {
  const auto expect = [&](const std::string& line, const std::string& words) {
    const std::string said = why(line);
    EXPECT_NE(said.find(words), std::string::npos) << line << " said: " << said;
  };
  expect("{\"audio_filepath\":", "not JSON: ");
  expect("{\"audio_filepath\":\"a\",\"text\":\"\\ud800\"}", "not JSON: ");
  expect("{\"audio_filepath\":\"a\",\"duration\":1,\"text\":\"\xff\"}", "not UTF-8: ");
  expect("17", "bad line: not a JSON object");
  expect("{}", "bad line: neither");
  expect(R"({"audio_filepath":7,"duration":1})", R"("audio_filepath" is not a string)");
  expect(R"({"audio_filepath":"","duration":1})", R"(no "audio_filepath")");
  expect(R"({"audio_filepath":"a"})", R"(no "duration")");
  expect(R"({"audio_filepath":"a","duration":-1})", "a duration of -1 seconds");
  expect(R"({"audio_filepath":"a","duration":0})", "zero length");
  expect(R"({"audio_filepath":"a","duration":1,"text":["x"]})", R"("text" is not a string)");
  expect(R"({"audio_filepath":"a","duration":1,"sampling_rate":1e30})", "not a whole number");
  expect(R"({"audio_filepath":"a","duration":1,"_skipme":"no"})", "neither true nor false");
  expect(R"({"audio_filepath":"s3://bucket/a.wav","duration":1})", "is a URL");
  expect(R"({"audio_filepath":"pipe:cat a.wav","duration":1})", "is a command");
}

// One cut with these supervisions and this recording.
std::string cut(const std::string& supervisions, const std::string& more = R"("channel":0)") {
  return R"({"id":"c","start":0.5,"duration":2.0,"supervisions":[)" + supervisions + "]," + more +
         R"(,"recording":{"id":"r","sources":[{"type":"file","channels":[2],"source":"x.wav"},)"
         R"({"type":"file","channels":[0,1],"source":"y.wav"}],"sampling_rate":16000,)"
         R"("num_samples":48000,"duration":3.0,"channel_ids":[0,1,2]},"type":"MonoCut"})";
}
const std::string kLate = R"({"id":"b","start":1.5,"duration":1.0,"text":"late","speaker":"B"})";
const std::string kEarly =
    R"({"id":"a","start":-0.25,"duration":1.0,"text":"early","language":"en","speaker":"A"})";

TEST_F(ManifestOnDisk, CutsJoinTheirSupervisionsInOrder) {
  const AudioManifest m = read(cut(kLate + "," + kEarly, R"("channel":1,"custom":{"k":1})"));
  ASSERT_EQ(m.entries.size(), 1u);
  const AudioEntry& e = m.entries[0];
  EXPECT_EQ(e.id, "c");
  EXPECT_EQ(e.path, folder_ / "y.wav") << "the source that has channel 1";
  EXPECT_EQ(e.channel, 1);
  EXPECT_EQ(e.offset, 0.5);
  EXPECT_EQ(e.duration, 2.0);
  EXPECT_FALSE(e.whole);
  EXPECT_EQ(e.rate, 16000);
  EXPECT_EQ(e.frames, 48000);
  EXPECT_EQ(e.text_letters, 10);
  EXPECT_EQ(e.line(2.0), R"({"id":"c","text":"early late","duration":2.0,"lang":"en","start":0.5,)"
                         R"("channel":1,"custom":{"k":1},"speaker":"A","supervisions":[)" +
                             kEarly + "," + kLate + "]}");
}

TEST_F(ManifestOnDisk, ChannelIsThatOfItsSource) {
  const AudioManifest m = read(cut(kLate, R"("channel":2)"));
  ASSERT_EQ(m.entries.size(), 1u);
  EXPECT_EQ(m.entries[0].path, folder_ / "x.wav");
  EXPECT_EQ(m.entries[0].channel, 0);
  EXPECT_NE(why(cut(kLate, R"("channel":3)")).find("no channel 3"), std::string::npos);
}

TEST_F(ManifestOnDisk, TrimmedToSupervisionsWithinTheCut) {
  ManifestOptions options;
  options.trim_to_supervisions = true;
  const AudioManifest m = read(cut(kLate + "," + kEarly), options);
  ASSERT_EQ(m.entries.size(), 2u);
  EXPECT_EQ(m.entries[0].id, "c-0");
  EXPECT_EQ(m.entries[0].offset, 0.5);
  EXPECT_EQ(m.entries[0].duration, 0.75) << "its first quarter of a second is before the cut";
  EXPECT_EQ(m.entries[1].id, "c-1");
  EXPECT_EQ(m.entries[1].offset, 2.0);
  EXPECT_EQ(m.entries[1].duration, 0.5) << "its second half is behind the cut";
  EXPECT_NE(m.entries[1].after.find(R"("speaker":"B")"), std::string::npos);
  EXPECT_NE(m.entries[1].before.find(R"("text":"late")"), std::string::npos);
  const AudioManifest none = read(cut(""), options);
  ASSERT_EQ(none.left_out.size(), 1u);
  EXPECT_EQ(none.left_out[0].reason, "no supervision");
  EXPECT_FALSE(none.left_out[0].bad);
  EXPECT_NE(why(cut(R"({"start":2.0,"duration":1})"), options).find("does not lie within"),
            std::string::npos);
}

TEST_F(ManifestOnDisk, OtherKindsOfCutsAndSourcesAreRefusedByName) {
  for (const auto& [kind, is] :
       {std::pair<std::string, std::string>{"MultiCut", ", which has several channels"},
        {"MixedCut", ", which mixes or joins several cuts"},
        {"PaddingCut", ""}})
    EXPECT_EQ(why(R"({"id":"c","duration":1,"type":")" + kind + "\"}"),
              "refused kind: it is a " + kind + is + "; only MonoCut is supported");
  EXPECT_EQ(why(R"({"id":"c","duration":1,"supervisions":[],"tracks":[]})"),
            "refused kind: it is a MixedCut, which mixes or joins several cuts; only MonoCut is "
            "supported");
  // The source in a Shar names a member of the tar beside it: without the tar it has no meaning.
  for (const std::string kind : {"command", "url", "memory", "shar"})
    EXPECT_EQ(why(R"({"id":"c","duration":1,"channel":0,"recording":{"sources":[{"type":")" + kind +
                  R"(","channels":[0],"source":")" + (kind == "shar" ? "" : "x") + R"("}]}})"),
              "refused kind: its recording comes from a source of type '" + kind + "'");
  EXPECT_EQ(why(R"({"id":"c","duration":1,"channel":0,"recording":{"sources":[],)"
                R"("transforms":[{"name":"Speed"}]}})"),
            "refused kind: its recording has the transform Speed");
}

TEST_F(ManifestOnDisk, TarredManifests) {
  const auto line = [](const std::string& file, int shard) {
    return "{\"audio_filepath\":\"" + file +
           "\",\"duration\":1,\"shard_id\":" + std::to_string(shard) + "}\n";
  };
  write_bytes(folder_ / "manifest_0.json", line("./a.wav", 0));
  write_bytes(folder_ / "manifest_1.json", line("b.wav", 1));
  const AudioManifest m = read_audio_manifests({folder_ / "manifest__OP_0..1_CL_.json"}, {});
  ASSERT_EQ(m.entries.size(), 2u);
  EXPECT_EQ(m.entries[0].path, folder_ / "audio_0.tar");
  EXPECT_EQ(m.entries[0].member, "a.wav");
  EXPECT_EQ(m.entries[1].path, folder_ / "audio_1.tar");
  EXPECT_EQ(m.entries[1].place, (folder_ / "manifest_1.json") + ":1");
  ManifestOptions options;
  options.tars = {folder_ / "t_{5..6}.tar"};
  const AudioManifest n = read(line("a.wav", 6) + line("b.wav", 7), options);
  ASSERT_EQ(n.entries.size(), 1u);
  EXPECT_EQ(n.entries[0].path, folder_ / "t_6.tar");
  ASSERT_EQ(n.left_out.size(), 1u);
  EXPECT_NE(n.left_out[0].detail.find("\"shard_id\" 7 is none of the tars"), std::string::npos);
}

TEST_F(ManifestOnDisk, SharTellsCutsOfOneIdApart) {
  const auto line = [](const std::string& id) {
    return R"({"id":")" + id +
           R"(","start":0,"duration":1,"channel":0,"type":"MonoCut","supervisions":[]})" + "\n";
  };
  write_bytes(folder_ / "s/cuts.000001.jsonl", line("x"));
  write_bytes(folder_ / "s/cuts.000000.jsonl", line("x") + line("y") + line("x"));
  write_bytes(folder_ / "s/recording.000000.tar", "");
  write_bytes(folder_ / "s/recording.000001.tar", "");
  const AudioManifest m = read_audio_manifests({folder_ / "s"}, {});
  ASSERT_EQ(m.entries.size(), 4u);
  EXPECT_EQ(m.entries[0].path, folder_ / "s/recording.000000.tar");
  EXPECT_TRUE(m.entries[0].by_stem);
  EXPECT_EQ(m.entries[0].occurrence, 0);
  EXPECT_EQ(m.entries[2].member, "x");
  EXPECT_EQ(m.entries[2].occurrence, 1);
  EXPECT_EQ(m.entries[3].path, folder_ / "s/recording.000001.tar");
  EXPECT_EQ(m.entries[3].occurrence, 0);
}

TEST(ShardPattern, CountsAsBashDoes) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(expand_shard_pattern("a__OP_8..11_CL_.tar"),
            (Names{"a_8.tar", "a_9.tar", "a_10.tar", "a_11.tar"}));
  EXPECT_EQ(expand_shard_pattern("a_{08..10}.tar"), (Names{"a_08.tar", "a_09.tar", "a_10.tar"}));
  EXPECT_EQ(expand_shard_pattern("d{0..1}/{0..1}"), (Names{"d0/0", "d0/1", "d1/0", "d1/1"}));
  EXPECT_EQ(expand_shard_pattern("plain{x}.json"), (Names{"plain{x}.json"}));
  EXPECT_DATA_ERROR(expand_shard_pattern("{3..1}"), "counts from 3 to 1");
}

}  // namespace
}  // namespace choir
