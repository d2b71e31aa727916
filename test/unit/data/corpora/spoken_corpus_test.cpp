// Tests of the plans of synthetic corpora, programs, WAV files, and folders of a corpus.
#include "src/data/corpora/spoken_corpus.hpp"

#include <cmath>
#include <map>
#include <set>

#include "choir/core/error.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/corpora/corpus_preparation.hpp"
#include "src/data/corpora/known_corpora.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using test::write_bytes;

/// 30^2 clauses "word word in the book" of different words.
std::string book() {
  std::vector<std::string> words;
  for (char a = 'a'; a < 'a' + 30 / 5; ++a)
    for (const char* end : {"lan", "mor", "nes", "pit", "rud"})
      words.push_back(a + std::string(end));
  std::string text;
  for (const auto& first : words)
    for (const auto& second : words) text += first + " " + second + " in the book,\n";
  return text;
}

struct Counts {
  std::map<std::string, std::set<CorpusSplit>> texts;
  std::map<CorpusSplit, std::set<std::string>> voices;
  std::map<CorpusSplit, int> lines;
};
Counts count(const SpokenPlan& plan, std::int64_t lines) {
  Counts counts;
  for (std::int64_t i = 0; i < lines; ++i) {
    const SpokenPlan::Line line = plan.line(i);
    counts.texts[line.spoken.text].insert(line.split);
    counts.voices[line.split].insert(line.spoken.voice);
    ++counts.lines[line.split];
    EXPECT_GE(line.spoken.words_per_minute, 130);
    EXPECT_LE(line.spoken.words_per_minute, 190);
    EXPECT_GE(line.spoken.pitch, 30);
    EXPECT_LE(line.spoken.pitch, 70);
    EXPECT_GE(line.spoken.snr_db, 15);
    EXPECT_LE(line.spoken.snr_db, 35);
    EXPECT_EQ(line.spoken.id, static_cast<std::uint64_t>(i));
  }
  return counts;
}

TEST(SpokenPlan, BookHoldsOutSentencesAndVoices) {
  const SpokenPlan plan = spoken_book_plan(book(), {.hours = 1});
  const int lines = 1800;  // all of the 900 clauses, twice
  const Counts counts = count(plan, lines);
  EXPECT_EQ(counts.texts.size(), 900u);
  for (const auto& [text, splits] : counts.texts)
    EXPECT_TRUE(!splits.contains(CorpusSplit::train) || splits.size() == 1) << text;
  const std::set<std::string> known(spoken_voices().begin(), spoken_voices().end());
  const std::set<std::string> unseen(unseen_voices().begin(), unseen_voices().end());
  EXPECT_EQ(known.size(), 9u);
  EXPECT_EQ(unseen.size(), 2u);
  EXPECT_EQ(counts.voices.at(CorpusSplit::train), known);
  EXPECT_EQ(counts.voices.at(CorpusSplit::val), known);
  EXPECT_EQ(counts.voices.at(CorpusSplit::val_voices), unseen);
  for (const std::string& voice : unseen) EXPECT_FALSE(known.contains(voice));
  // A tenth of 900 sentences is held out: a binomial number with a standard deviation of 9
  // sentences, each of which is spoken twice. Half of the lines are by unseen voices: the standard
  // deviation is below 7.
  const int val = counts.lines.at(CorpusSplit::val), far = counts.lines.at(CorpusSplit::val_voices);
  EXPECT_NEAR(val + far, lines / 10, 4 * 18);
  EXPECT_NEAR(val, far, 4 * 14);
}

TEST(SpokenPlan, EveryClauseOnceBeforeAnyTwice) {
  const SpokenPlan plan = spoken_book_plan(book(), {.hours = 1});
  std::set<std::string> texts;
  for (std::int64_t i = 0; i < 900; ++i) texts.insert(plan.line(i).spoken.text);
  EXPECT_EQ(texts.size(), 900u);
  EXPECT_NE(plan.line(0).spoken.text,
            spoken_book_plan(book(), {.hours = 1, .seed = 2}).line(0).spoken.text);
  EXPECT_EQ(plan.line(5).spoken.voice, spoken_book_plan(book(), {.hours = 9}).line(5).spoken.voice);
  EXPECT_DATA_ERROR(spoken_book_plan("no.", {.hours = 1}), "no clauses");
}

TEST(SpokenPlan, OneVoiceWithoutNoiseAndANewTenth) {
  const SpokenPlan plan = spoken_voice_plan(book(), {.hours = 1});
  std::set<std::string> train, val;
  for (std::int64_t i = 0; i < 900; ++i) {
    const SpokenPlan::Line line = plan.line(i);
    EXPECT_EQ(line.spoken.voice, "en-us");
    EXPECT_TRUE(std::isinf(line.spoken.snr_db));
    (line.split == CorpusSplit::train ? train : val).insert(line.spoken.text);
  }
  EXPECT_EQ(train.size() + val.size(), 900u);
  EXPECT_NEAR(static_cast<double>(val.size()), 90, 4 * 9);
}

TEST(SpokenPlan, DigitsHoldOutStringsAndTrainEveryDigit) {
  const int lines = 4000;
  const Counts counts = count(spoken_digits_plan({.hours = 1}), lines);
  std::set<std::string> single;
  for (const auto& [text, splits] : counts.texts) {
    EXPECT_EQ(splits.size(), 1u) << text;
    const std::size_t length = split(text, ' ').size();
    EXPECT_TRUE(length >= 1 && length <= 4) << text;
    if (length == 1 && splits.contains(CorpusSplit::train)) single.insert(text);
  }
  EXPECT_EQ(single, (std::set<std::string>{"zero", "one", "two", "three", "four", "five", "six",
                                           "seven", "eight", "nine"}));
  EXPECT_EQ(counts.voices.at(CorpusSplit::train).size(), 11u);
  // A tenth is for validation. Most of the spread comes from the number of held-out pairs among
  // 100: it is 13 with a standard deviation of 3.4, and each pair stands for 10 lines.
  EXPECT_NEAR(counts.lines.at(CorpusSplit::val), lines / 10, 4 * 45);
  EXPECT_EQ(counts.lines.count(CorpusSplit::val_voices), 0u);
}

TEST(SpokenProcess, GivesTheOutputAndNamesWhatIsMissing) {
  EXPECT_EQ(run_program({"printf", "%s|", "a b", "$HOME"}, "coreutils"), "a b|$HOME|");
  EXPECT_EQ(run_program({"cat"}, "coreutils"), "");  // nothing on its standard input
  EXPECT_EQ(run_program({"head", "-c", "1000000", "/dev/zero"}, "coreutils").size(), 1000000u);
  EXPECT_DATA_ERROR(run_program({"choir-no-such-program"}, "a"),
                    "program not found: choir-no-such");
  EXPECT_DATA_ERROR(run_program({"ls", "/no such folder"}, "a"), "/no such folder");
  try {
    run_program({"choir-no-such-program"}, "its-package");
  } catch (const DataError& error) {
    EXPECT_EQ(error.hint(), "apt-get install its-package");
  }
}

TEST(SpokenWav, HeaderAndSamplesComeBack) {
  const std::vector<std::int16_t> samples{1, -2, 300};
  const std::string data = test::packed(std::span<const std::int16_t>(samples));
  const std::string file = wav_header(16000, 3) + data;
  EXPECT_EQ(file.size(), 50u);
  EXPECT_EQ(parse_wav(file, "a").sample_rate, 16000);
  EXPECT_EQ(parse_wav(file, "a").samples, samples);
  // A program that writes to a pipe does not know the length.
  std::string streamed = file;
  streamed.replace(40, 4, "\xff\xff\xff\x7f");
  EXPECT_EQ(parse_wav(streamed, "a").samples, samples);
  // A chunk of odd length, with its byte of padding, before the samples.
  std::string longer = file;
  longer.insert(36, std::string("LIST\x03\0\0\0abc\0", 12));
  EXPECT_EQ(parse_wav(longer, "a").samples, samples);
  std::string stereo = file;
  stereo[22] = 2;
  EXPECT_DATA_ERROR(parse_wav(stereo, "two.wav"), "two.wav");
  EXPECT_DATA_ERROR(parse_wav("RIFFxxxxWAVE", "a"), "no samples");
  EXPECT_DATA_ERROR(parse_wav("", "a"), "not a WAV file");
}

TEST(SpokenCorpus, IsMadeOnceAndKeepsToItsFolder) {
  const ScratchFolder scratch;
  const std::string folder = scratch / "corpus";
  CorpusReport report;
  EXPECT_FALSE(find_corpus(folder, "{\"a\":1}", report));
  finish_corpus(folder, "{\"a\":1}",
                {{CorpusSplit::train, "audio/x.wav", 0, 1.5, "one", "v"},
                 {CorpusSplit::val, "audio/x.wav", 1500, 0.25, "two", "v"}});
  EXPECT_EQ(test::read_bytes(folder + "/val.json"),
            "{\"audio_filepath\":\"audio/x.wav\",\"offset\":1.5,\"duration\":0.25,\"text\":\"two\","
            "\"speaker\":\"v\",\"lang\":\"en\"}\n");
  EXPECT_FALSE(std::filesystem::exists(folder + "/val_voices.json"));
  ASSERT_TRUE(find_corpus(folder, "{\"a\":1}", report));
  EXPECT_FALSE(report.made);
  EXPECT_EQ(report.parts[0], (CorpusReport::Part{1, 1.5}));
  // Another request removes the files of the one before.
  EXPECT_FALSE(find_corpus(folder, "{\"a\":2}", report));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  write_bytes(folder + "/mine.txt", "keep");
  EXPECT_DATA_ERROR(find_corpus(folder, "{\"a\":2}", report), "'mine.txt'");
}

TEST(CorpusTexts, OfTextManifestsAndPackedAudio) {
  const ScratchFolder folder;
  write_bytes(folder / "a.txt", "one two\n\n  three \n");
  write_bytes(folder / "b.json", "{\"text\":\"four\"}\n{\"text\":null}\n{\"duration\":1}\n");
  write_bytes(folder / "packed/manifest.jsonl", "{\"text\":\"five\"}\n");
  EXPECT_EQ(read_corpus_texts({folder / "a.txt", folder / "b.json", folder / "packed"}),
            (std::vector<std::string>{"one two", "three", "four", "five"}));
  write_bytes(folder / "c.json", "{\"text\":\"x\"}\n{\"text\":}\n");
  EXPECT_DATA_ERROR(read_corpus_texts({folder / "c.json"}), "c.json:2");
  write_bytes(folder / "d.txt", "\n");
  EXPECT_DATA_ERROR(read_corpus_texts({folder / "d.txt"}), "no text in");
  EXPECT_DATA_ERROR(read_corpus_texts({folder / "none.txt"}), "none.txt");
}

}  // namespace
}  // namespace choir
