// Manifests of folders and lists of recordings, and forms of texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/audio/recording_list.hpp"
#include "src/data/audio/transcript_form.hpp"
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
  write({.form = {.lower_case = true}});
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
  EXPECT_NE(refusal().find("differ only in their extensions"), std::string::npos);
  EXPECT_NE(refusal({.no_texts = true}).find("b.flac' cannot be read"), std::string::npos);
  std::filesystem::remove(folder_ / "sound/b.wav");
  EXPECT_NE(refusal().find("b.flac' cannot be read as audio"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("; --on-bad skip leaves such recordings out"), std::string::npos)
      << refusal();
  EXPECT_EQ(write({.skip_bad = true}).bad.count(), 1);
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
  EXPECT_THROW(copy({}), DataError) << "its recording is missing";
  EXPECT_THROW(copy({.untexted = true}), DataError) << "no line is left";
  put("old/a.wav", wav(12000));
  EXPECT_EQ(copy({}).recordings, 1);
  EXPECT_EQ(lines()[0]["text"], "ONE Two");
  EXPECT_DOUBLE_EQ(copy({.form = {.lower_case = true}}).seconds, 1.5);
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
  put("old/a.wav", wav(8000));
  put("old/cuts.jsonl", R"({"id": "c1", "start": 0.25, "duration": 0.5, "channel": 0,
"supervisions": [{"id": "s", "start": 0, "duration": 0.5, "text": "ONE"}], "type": "MonoCut",
"recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
"sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}})");
  std::string cut = test::read_bytes(folder_ / "old/cuts.jsonl");
  std::ranges::replace(cut, '\n', ' ');
  put("old/cuts.jsonl", cut);
  write_folder_manifest({folder_ / "old/cuts.jsonl"}, folder_ / "made/manifest.json",
                        {.form = {.lower_case = true}});
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["audio_filepath"], folder_ / "old/a.wav");
  EXPECT_DOUBLE_EQ(lines()[0]["offset"], 0.25);
  EXPECT_DOUBLE_EQ(lines()[0]["duration"], 0.5);
  EXPECT_EQ(lines()[0]["text"], "one");
}

TEST_F(FolderManifest, WrongDurationsOfWholeFilesAreCorrected) {
  put("old/a.wav", wav(4000));
  const auto copy = [&](const std::string& line) {
    put("old/m.json", line + "\n");
    return write_folder_manifest({folder_ / "old/m.json"}, folder_ / "made/manifest.json", {});
  };
  const auto made = copy(R"({"audio_filepath": "a.wav", "duration": 9.0, "text": "one"})");
  EXPECT_EQ(made.corrected, 1);
  EXPECT_NE(made.to_string().find("a.wav lasts 0.50 s, its line said 9.00"), std::string::npos);
  EXPECT_DOUBLE_EQ(lines()[0]["duration"], 0.5);
  EXPECT_EQ(copy(R"({"audio_filepath": "a.wav", "duration": 0.52, "text": "one"})").corrected, 0);
  EXPECT_EQ(
      copy(R"({"audio_filepath": "a.wav", "offset": 0, "duration": 0.2, "text": "one"})").corrected,
      0)
      << "a part of a recording";
  const auto limited = copy(R"({"audio_filepath": "a.wav", "duration": 0.2, "text": "one"})");
  EXPECT_EQ(limited.corrected, 0);
  EXPECT_EQ(limited.limited, 1) << "a shorter duration limits the recording, as in NeMo";
  EXPECT_DOUBLE_EQ(lines()[0]["duration"], 0.2);
  EXPECT_NE(limited.to_string().find("the first 0.20 s of the 0.50 s of"), std::string::npos);
  EXPECT_THROW(
      copy(R"({"audio_filepath": "a.wav", "offset": 0.3, "duration": 0.5, "text": "one"})"),
      DataError)
      << "a segment that ends behind its recording";
}

TEST_F(FolderManifest, FilesThatWereCutOffKeepTheirDurations) {
  put("old/a.wav", wav(8000).substr(0, 44 + 8000));
  put("old/m.json", R"({"audio_filepath": "a.wav", "duration": 1.0, "text": "one"})");
  const auto made =
      write_folder_manifest({folder_ / "old/m.json"}, folder_ / "made/m.json", {.no_texts = true});
  EXPECT_EQ(made.corrected, 0);
  EXPECT_EQ(made.cut_off, 1);
  EXPECT_NE(made.to_string().find("a.wav ends after 4000 of the 8000 samples"), std::string::npos);
}

TEST_F(FolderManifest, AWholeRecordingWithATextThatWasCutOffIsBad) {
  put("old/a.wav", wav(8000).substr(0, 44 + 8000));
  put("old/b.wav", wav(8000));
  put("old/c.wav", wav(8000).substr(0, 44 + 15900));
  put("old/m.json", R"({"audio_filepath": "a.wav", "text": "one"})"
                    "\n"
                    R"({"audio_filepath": "a.wav", "offset": 0, "duration": 0.2, "text": "one"})"
                    "\n"
                    R"({"audio_filepath": "b.wav", "text": "two"})"
                    "\n"
                    R"({"audio_filepath": "c.wav", "text": "three"})"
                    "\n");
  const auto write = [&](const FolderManifestOptions& options) {
    return write_folder_manifest({folder_ / "old/m.json"}, folder_ / "made/m.json", options);
  };
  EXPECT_DATA_ERROR(write({}), "a.wav' ends after 4000 of the 8000 samples");
  const auto made = write({.skip_bad = true});
  EXPECT_EQ(made.bad.count(), 1);
  EXPECT_EQ(made.recordings, 3) << "a segment, a whole file, and one that lacks less than 1 %";
  EXPECT_EQ(made.cut_off, 2);
}

TEST_F(FolderManifest, NothingElseIsOverwritten) {
  put("old/a.wav", wav(4000));
  put("old/m.json", R"({"audio_filepath": "a.wav", "duration": 0.5, "text": "one"})");
  const auto write_to = [&](const std::string& out) {
    write_folder_manifest({folder_ / "old/m.json"}, folder_ / out, {});
  };
  for (const std::string out : {"old/m.json", "old/../old/m.json", "old/a.wav", "old"})
    EXPECT_THROW(write_to(out), DeckError) << out;
  EXPECT_EQ(test::read_bytes(folder_ / "old/a.wav"), wav(4000));
  write_to("made/m.json");
  write_to("made/m.json");  // a manifest may be written again
}

TEST_F(FolderManifest, TablesOfOtherProgramsAreRead) {
  put("cv/clips/a.wav", wav(4000)), put("cv/clips/b.wav", wav(8000));
  const auto table = [&](const std::string& name, const std::string& text,
                         const FolderManifestOptions& options = {}) {
    put("cv/" + name, text);
    return write_folder_manifest({folder_ / ("cv/" + name)}, folder_ / "made/manifest.json",
                                 options);
  };
  const auto refused = [&](const std::string& name, const std::string& text) {
    try {
      table(name, text);
      return std::string("accepted");
    } catch (const DataError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
  };
  // Common Voice: quotes are letters, and the folder of the files is not named.
  const std::string voice =
      "client_id\tpath\tsentence\tlocale\nx\ta.wav\tHe said "
      "\"no\".\ten\ny\tb.wav\tWell-made!\ten\n";
  EXPECT_EQ(table("train.tsv", voice).recordings, 2);
  EXPECT_EQ(lines()[0]["audio_filepath"], folder_ / "cv/clips/a.wav");
  EXPECT_EQ(lines()[0]["text"], "He said \"no\".");
  EXPECT_EQ(lines()[0]["duration"], 0.5);
  EXPECT_EQ(lines()[1]["speaker"], "y");
  EXPECT_EQ(lines()[1]["lang"], "en");
  table("train.tsv", voice, {.form = {.lower_case = true, .without_punctuation = true}});
  EXPECT_EQ(lines()[0]["text"], "he said no");
  EXPECT_EQ(lines()[1]["text"], "well made");
  // metadata.csv of Hugging Face: fields may be in quotes.
  table("metadata.csv",
        "file_name,transcription\nclips/a.wav,\"one, \"\"two\"\"\"\nclips/b.wav,three\n");
  EXPECT_EQ(lines()[0]["text"], "one, \"two\"");
  // LJSpeech: no header, no extension, and the last column is the text as spoken.
  table("metadata.csv", "a|Dr. Smith|Doctor Smith\nb|one|one\n");
  EXPECT_EQ(lines()[0]["text"], "Doctor Smith");
  EXPECT_EQ(lines()[1]["audio_filepath"], folder_ / "cv/clips/b.wav");

  EXPECT_NE(refused("x.tsv", "path\tage\na.wav\t3\n")
                .find("no column names the texts; the columns "
                      "are path, age"),
            std::string::npos);
  EXPECT_NE(refused("x.tsv", "path\ttext\nc.wav\tone\n").find("x.tsv:2: there is no file '"),
            std::string::npos);
  EXPECT_NE(refused("x.csv", "path,text\na.wav,\"one\n").find("x.csv:2: a quote is not closed"),
            std::string::npos);
  EXPECT_NE(
      refused("x.tsv", "path\ttext\na.wav\tone\ttwo\n").find("3 fields, but the header has 2"),
      std::string::npos);
  const auto made =
      table("x.tsv", "path\ttext\nc.wav\tone\na.wav\ttwo\nb.wav\t\n", {.untexted = true});
  EXPECT_EQ(made.recordings, 1);
  EXPECT_EQ(made.without_file, 1);
  EXPECT_EQ(made.without_text, 1);
  // The table, not the folder, has the texts, and it is named.
  try {
    write_folder_manifest({folder_ / "cv"}, folder_ / "made/manifest.json", {});
    ADD_FAILURE() << "a folder without texts was accepted";
  } catch (const DataError& error) {
    EXPECT_NE(error.hint().find("choir prepare manifest " + folder_ / "cv/metadata.csv"),
              std::string::npos)
        << error.hint();
  }
  // A table where a manifest is expected names the command.
  try {
    read_audio_manifests({folder_ / "cv/train.tsv"}, {});
    ADD_FAILURE() << "a table was read as a manifest";
  } catch (const DataError& error) {
    EXPECT_NE(error.hint().find("choir prepare manifest " + folder_ / "cv/train.tsv"),
              std::string::npos);
  }
}

TEST_F(FolderManifest, FoldersOfKaldiAreRead) {
  put("k/s/a.wav", wav(8000)), put("k/s/b.wav", wav(4000));
  put("k/wav.scp", "r1 s/a.wav\nr2 " + folder_ / "k/s/b.wav" + "\n");
  put("k/text", "r1 ONE TWO\nr2 THREE\n");
  put("k/utt2spk", "r1 ann\nr2 bob\n");
  const auto write_k = [&] {
    return write_folder_manifest({folder_ / "k"}, folder_ / "k/made.json", {});
  };
  EXPECT_EQ(write_k().recordings, 2);
  std::istringstream text(test::read_bytes(folder_ / "k/made.json"));
  std::string first;
  std::getline(text, first);
  const auto line = nlohmann::json::parse(first);
  EXPECT_EQ(line["audio_filepath"], "s/a.wav");
  EXPECT_EQ(line["text"], "ONE TWO");
  EXPECT_EQ(line["duration"], 1.0);
  EXPECT_EQ(line["speaker"], "ann");
  // Segments are parts of the recordings.
  put("k/segments", "u1 r1 0.00 0.25\nu2 r1 0.5 1.0\n");
  put("k/text", "u1 ONE\nu2 TWO\n");
  EXPECT_EQ(write_k().recordings, 2);
  const AudioManifest read = read_audio_manifests({folder_ / "k/made.json"}, {});
  ASSERT_EQ(read.entries.size(), 2u);
  EXPECT_DOUBLE_EQ(read.entries[1].offset, 0.5);
  EXPECT_DOUBLE_EQ(read.entries[1].duration, 0.5);
  EXPECT_EQ(read.entries[1].id, "u2");
  const auto refused = [&] {
    try {
      write_k();
      return std::string("accepted");
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  put("k/segments", "u1 r9 0 1\n");
  EXPECT_NE(refused().find("segments:1: bad line: 'r9' is not in "), std::string::npos)
      << refused();
  put("k/segments", "u1 r1 0 x\n");
  EXPECT_NE(refused().find("segments:1: bad line: 'x' is no time in seconds"), std::string::npos);
  std::filesystem::remove(folder_ / "k/segments");
  put("k/wav.scp", "r1 sox s/a.wav -t wav - |\n");
  EXPECT_NE(refused().find("is a command, and commands are not run"), std::string::npos);
}

TEST_F(FolderManifest, KeysOfOtherProgramsAreRenamed) {
  put("hf/a.wav", wav(4000));
  put("hf/metadata.jsonl", R"({"file_name": "a.wav", "transcription": "one"})"
                           "\n"
                           R"({"audio": {"path": "a.wav"}, "sentence": "two"})"
                           "\n");
  write_folder_manifest({folder_ / "hf/metadata.jsonl"}, folder_ / "made/manifest.json", {});
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[0]["text"], "one");
  EXPECT_EQ(lines()[1]["audio_filepath"], folder_ / "hf/a.wav");
  EXPECT_EQ(lines()[1]["duration"], 0.5);
}

TEST(TranscriptForm, WithoutPunctuation) {
  EXPECT_EQ(without_punctuation("Well-made, isn't it?  \"Yes\"..."), "Well made isn't it Yes");
  EXPECT_EQ(without_punctuation("l\xe2\x80\x99\xc3\xa9t\xc3\xa9 \xe2\x80\x94 3/4 U.S."),
            "l'\xc3\xa9t\xc3\xa9 3 4 US");
  EXPECT_EQ(without_punctuation("\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\x82 \xe0\xa5\xa4"),
            "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\x82")
      << "signs of vowels belong to their letters";
  EXPECT_EQ(without_punctuation("'tis 'quoted'"), "tis quoted");
  EXPECT_EQ(without_punctuation("$3.50, or 1,000."), "3 50 or 1 000")
      << "other numbers must not result";
  EXPECT_TRUE(parts_numbers("at 7:30"));
  EXPECT_FALSE(parts_numbers("in 1984, or 12 more"));
  EXPECT_EQ(without_punctuation("\xff,"), "\xff,") << "bytes that are no text stay";
}

TEST(TranscriptForm, TheCommandHasTheOptionsThatSuffice) {
  const Vocabulary letters = Vocabulary::characters({U' ', U'a', U'b', U'c'});
  const auto command = [&](const std::string& text) {
    UnwritableTexts texts(letters);
    texts.add(text);
    return texts.command("d/m.json");
  };
  EXPECT_EQ(command("a b"), "") << "nothing to do";
  EXPECT_EQ(command("A b"), "choir prepare manifest d/m.json --lower-case --out d/m_plain.json");
  EXPECT_EQ(command("a, b"),
            "choir prepare manifest d/m.json --remove-punctuation --out d/m_plain.json");
  EXPECT_EQ(command("A, b"),
            "choir prepare manifest d/m.json --lower-case --remove-punctuation --out "
            "d/m_plain.json");
  EXPECT_EQ(command("ax"), "") << "no form helps";
  UnwritableTexts some(letters);
  for (const char* text : {"A b", "C", "ax"}) some.add(text);
  EXPECT_EQ(some.command("m.json"), "choir prepare manifest m.json --lower-case --out m_plain.json")
      << "it helps most of them";
  EXPECT_EQ(some.remaining(), 1);
}

}  // namespace
}  // namespace choir
