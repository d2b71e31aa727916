#include "src/data/dialogues/prepare_dialogues.hpp"

#include <gtest/gtest.h>
#include <cmath>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/dialogues/dialogue_batches.hpp"
#include "src/data/dialogues/prepare_codes.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/duplex/evaluation.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/models/duplex/duplex_case.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kHop = 1280;

/// A wave of this many frames, and a few samples more, on each of `channels`.
void write_wave(const std::string& path, std::int64_t samples, int step, int channels = 1) {
  std::string bytes = wav_header(16000, samples * channels);
  if (channels == 2) bytes[22] = 2, bytes[32] = 4;
  for (std::int64_t i = 0; i < samples; ++i)
    for (int c = 0; c < channels; ++c) {
      const auto value = static_cast<std::int16_t>((i * (step + c)) % 20011 - 10005);
      bytes.append(reinterpret_cast<const char*>(&value), 2);
    }
  write_whole_file(path, bytes);
}

Json turn(const char* speaker, double start, double duration, const char* text) {
  return {{"speaker", speaker}, {"start", start}, {"duration", duration}, {"text", text}};
}

struct DialogueLine {
  std::string id;
  std::int64_t user = 20 * kHop, agent = 20 * kHop;
  Json turns = Json::array({turn("user", 0.1, 0.3, "ab"), turn("agent", 0.4, 0.56, "a b"),
                            turn("User", 0.8, 0.24, "b"), turn("Assistant", 1.12, 0.24, "abab")});
};

/// Writes both recordings; returns the cut with its target.
std::string cut_with_target(const ScratchFolder& folder, const DialogueLine& line) {
  const auto recording = [&](const char* who, std::int64_t samples, int step) {
    const std::string name = line.id + "_" + who + ".wav";
    write_wave(folder / name, samples, step);
    return Json{{"id", name},
                {"sources", {{{"type", "file"}, {"channels", {0}}, {"source", name}}}},
                {"sampling_rate", 16000},
                {"num_samples", samples},
                {"duration", static_cast<double>(samples) / 16000}};
  };
  Json cut{{"id", line.id},
           {"start", 0.0},
           {"duration", static_cast<double>(line.user) / 16000},
           {"channel", 0},
           {"supervisions", line.turns},
           {"recording", recording("user", line.user, 3)},
           {"custom", {{"target_audio", recording("agent", line.agent, 7)}}},
           {"type", "MonoCut"}};
  return dumped(cut) + "\n";
}

PrepareDialoguesSummary prepared(const ScratchFolder& folder, const std::string& lines,
                                 PrepareDialoguesOptions options = {}) {
  write_whole_file(folder / "dialogues.jsonl", lines);
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  Logger log(false);
  return prepare_dialogues(*alone, log, {folder / "dialogues.jsonl"}, folder / "packed", options);
}

std::string complaint_of_dialogues(const ScratchFolder& folder, const std::string& lines,
                                   const PrepareDialoguesOptions& options = {}) {
  try {
    prepared(folder, lines, options);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::int32_t> labels_of(const ScratchFolder& folder, std::int64_t i) {
  const AudioCatalog user = AudioCatalog::open(folder / "packed/user");
  const LabelFile labels = LabelFile::open(folder / "packed/user", "char", user.hash());
  const auto ids = labels[i];
  return {ids.begin(), ids.end()};
}

TEST(PrepareDialogues, TheTextChannelIsBesideTheAudio) {
  const ScratchFolder folder;
  const auto summary = prepared(folder, cut_with_target(folder, {.id = "one"}));
  EXPECT_EQ(summary.dialogues, 1);
  EXPECT_EQ(summary.turns, 2);
  EXPECT_EQ(summary.frames, 20);
  EXPECT_EQ(summary.cut, 2) << "abab has a turn of three frames";
  EXPECT_NE(summary.worst.find("turn 2 of 'one'"), std::string::npos) << summary.worst;
  // Characters ' ', a, b, followed by padding, BOS and EOS.
  EXPECT_EQ(labels_of(folder, 0), (std::vector<std::int32_t>{3, 3, 3, 3, 3, 4, 1, 0, 2, 3,
                                                             3, 3, 5, 3, 4, 1, 2, 5, 3, 3}));
  const DialogueForm form = DialogueForm::read(folder / "packed");
  EXPECT_EQ(form.vocab_size, 6);
  EXPECT_EQ(form.controls, (DialogueControls{3, 4, 5}));
  const auto turns = turns_of_line(AudioCatalog::open(folder / "packed/user").line(0), "the test");
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_FALSE(turns[2].agent);
  EXPECT_EQ(turns[3].text, "abab");
}

// Words of the agent, with their times and without the pauses between them, are stored beside its
// turns; they are the sound that can be heard on its side.
TEST(PrepareDialogues, WordsKeepTheirTimes) {
  const ScratchFolder folder;
  DialogueLine line{.id = "aligned"};
  line.turns[1]["text"] = "a b a";
  const Json words = Json::array({Json::array({"a", 0.48, 0.16}), Json::array({"", 0.64, 0.08}),
                                  Json::array({"b", 0.72, 0.24, 0.9})});
  line.turns[1]["alignment"]["word"] = words;
  line.turns[0]["alignment"]["word"] = words;  // nobody requests those of the user
  prepared(folder, cut_with_target(folder, line));
  const auto turns = turns_of_line(AudioCatalog::open(folder / "packed/user").line(0), "the test");
  EXPECT_EQ(turns[1].words, (std::vector<DialogueWord>{{"a", 0.48, 0.16}, {"b", 0.72, 0.24}}));
  EXPECT_TRUE(turns[0].words.empty() && turns[3].words.empty());
  EXPECT_EQ(turns[1].text, "a b a");
  EXPECT_EQ(AudioCatalog::open(folder / "packed/agent").text(0), "a b abab");
  line.turns[1]["alignment"]["word"][2][1] = 0.2;
  EXPECT_NE(complaint_of_dialogues(folder, cut_with_target(folder, line)).find("not in order"),
            std::string::npos);
  line.turns[1]["alignment"]["word"][2] = "b";
  EXPECT_NE(
      complaint_of_dialogues(folder, cut_with_target(folder, line)).find("[word, start, duration]"),
      std::string::npos);
}

// Two channels of one file give the same as two files, in either order of the speakers.
TEST(PrepareDialogues, TwoChannelsOfOneFile) {
  const ScratchFolder folder;
  write_wave(folder / "both.wav", 20 * kHop, 3, 2);
  Json line{{"audio_filepath", "both.wav"}, {"duration", 1.6}};
  line["supervisions"] = DialogueLine{.id = ""}.turns;
  Json cut{{"id", "multi"}, {"start", 0.0}, {"duration", 1.6}, {"channel", {0, 1}}};
  cut["type"] = "MultiCut";
  cut["supervisions"] = line["supervisions"];
  for (auto& said : cut["supervisions"])
    said["channel"] = said["speaker"] == "user" || said["speaker"] == "User" ? 1 : 0;
  cut["recording"] = {
      {"id", "both"},
      {"sources", {{{"type", "file"}, {"channels", {0, 1}}, {"source", "both.wav"}}}},
      {"sampling_rate", 16000},
      {"num_samples", 20 * kHop},
      {"duration", 1.6}};
  prepared(folder, dumped(line) + "\n" + dumped(cut) + "\n");
  const AudioCatalog user = AudioCatalog::open(folder / "packed/user");
  const AudioCatalog agent = AudioCatalog::open(folder / "packed/agent");
  ASSERT_EQ(user.size(), 2);
  EXPECT_EQ(user[0].crc, agent[1].crc) << "the channels are swapped in the second";
  EXPECT_EQ(user[1].crc, agent[0].crc);
  EXPECT_NE(user[0].crc, user[1].crc);
  EXPECT_EQ(labels_of(folder, 0), labels_of(folder, 1));
}

TEST(PrepareDialogues, RefusesByName) {
  const ScratchFolder folder;
  DialogueLine stranger{.id = "stranger"};
  stranger.turns.push_back(turn("moderator", 1.4, 0.1, "b"));
  EXPECT_NE(complaint_of_dialogues(folder, cut_with_target(folder, stranger))
                .find("speaker 'moderator' is neither user"),
            std::string::npos);
  PrepareDialoguesOptions skip;
  skip.stop_on_bad = false;
  skip.bad_cap = 0.7;
  EXPECT_NE(complaint_of_dialogues(folder, cut_with_target(folder, stranger), skip).find("neither"),
            std::string::npos)
      << "never skipped";
  const DialogueLine apart{.id = "apart", .agent = 17 * kHop};
  EXPECT_NE(complaint_of_dialogues(folder, cut_with_target(folder, apart)).find("apart: sides"),
            std::string::npos);
  PrepareDialoguesOptions one_token;
  one_token.pad = one_token.eos = 1;
  EXPECT_THROW(prepared(folder, cut_with_target(folder, {.id = "x"}), one_token), DeckError);
}

TEST(PrepareDialogues, LeavesOutWhatIsBadOnOneSide) {
  const ScratchFolder folder;
  const DialogueLine apart{.id = "apart", .agent = 17 * kHop},
      near{.id = "near", .agent = 18 * kHop};
  PrepareDialoguesOptions skip;
  skip.stop_on_bad = false;
  skip.bad_cap = 0.5;
  const std::string lines = cut_with_target(folder, {.id = "one"}) +
                            cut_with_target(folder, apart) + cut_with_target(folder, near) +
                            "{\"id\": \"empty\"}\n";
  const auto summary = prepared(folder, lines, skip);
  EXPECT_EQ(summary.dialogues, 2);
  EXPECT_EQ(summary.left_out.at("sides of different lengths"), 1);
  EXPECT_EQ(labels_of(folder, 1).size(), 18u) << "the shorter side counts";
  EXPECT_EQ(AudioCatalog::open(folder / "packed/agent").size(), 2);
  EXPECT_EQ(prepared(folder, lines, skip).dialogues, 2) << "once more";
  EXPECT_NE(complaint_of_dialogues(folder, cut_with_target(folder, near))
                .find("dialogues of other manifests"),
            std::string::npos);
  skip.bad_cap = 0.4;
  EXPECT_NE(complaint_of_dialogues(folder, lines, skip).find("more than the 40 %"),
            std::string::npos);
}

TEST(DialogueRoles, AreNamedOnceEach) {
  const auto roles = DialogueRoles::parse("user=A|caller, agent=B");
  EXPECT_TRUE(roles.is_agent("B", ""));
  EXPECT_FALSE(roles.is_agent("caller", ""));
  EXPECT_THROW(roles.is_agent("user", "m:1"), DataError);
  for (const char* wrong : {"", "user=A", "user=A,agent=A", "user=A,agent=", "bot=A", "A,B"})
    EXPECT_THROW(DialogueRoles::parse(wrong), DeckError) << wrong;
}

CodecDescription codec_of_test(std::uint64_t hash = 99) {
  return {.hash = hash,
          .sample_rate = 16000,
          .frame_samples = kHop,
          .codebooks = 2,
          .codes_per_book = 100,
          .silence = {1, 2}};
}

void write_codes(const ScratchFolder& folder, const CodecDescription& codec) {
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  Logger log(false);
  prepare_codes(*alone, log, folder / "packed/agent", "codec", codec,
                [&](std::span<const std::int16_t> samples) {
                  std::vector<std::uint16_t> codes;
                  for (std::int64_t t = 0; t < codec.frames_of(std::ssize(samples)); ++t)
                    for (int k = 0; k < 2; ++k)
                      codes.push_back(static_cast<std::uint16_t>(3 * t + k));
                  return codes;
                });
}

DialogueConfig config_of(const ScratchFolder& folder) {
  DialogueConfig config;
  config.user.train = SpeechMix::of_folders({folder / "packed"});
  config.user.eval.push_back({.name = "held", .folders = {folder / "packed"}});
  config.user.frames.causal = true;
  config.user.batching.buckets = 1;
  config.user.window = 2;
  config.user.slots = 1;
  return config;
}

TEST(DialogueBatches, HaveTextAndDelayedCodes) {
  const ScratchFolder folder;
  prepared(folder,
           cut_with_target(folder, {.id = "one"}) +
               cut_with_target(folder, {.id = "two", .user = 21 * kHop, .agent = 21 * kHop}));
  write_codes(folder, codec_of_test());
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  const auto data = DialogueBatches::open(*alone, config_of(folder));
  data->user().start_training(SpeechOrder::of_rank(data->user().sampler().begin(), 1, 0, 1));
  const DialogueBatch& batch = data->next();
  ASSERT_EQ(batch.rows, 2);
  ASSERT_EQ(batch.frames, 20);
  EXPECT_EQ(batch.text_counted, 19 + 20);
  EXPECT_EQ(batch.codes_counted, 2 * (19 + 20));
  for (std::int64_t row = 0; row < 2; ++row) {
    const std::int64_t recording = batch.user->rows[static_cast<std::size_t>(row)].item.utterance;
    const std::vector<std::int32_t> text = labels_of(folder, recording);
    const auto* read = batch.text.as<std::int32_t>() + row * 20;
    const auto* said = batch.text_targets.as<std::int32_t>() + row * 20;
    const auto* codes = batch.codes.as<std::int32_t>() + row * 40;
    const auto* targets = batch.code_targets.as<std::int32_t>() + row * 40;
    const std::int64_t steps = std::ssize(text) - 1;
    for (std::int64_t t = 0; t < 20; ++t) {
      const auto at = static_cast<std::size_t>(t);
      EXPECT_EQ(read[t], t < steps ? text[at] : 0);
      EXPECT_EQ(said[t], t < steps ? text[at + 1] : -1);
      const std::int32_t sound = t >= steps      ? -1
                                 : text[at] == 4 ? 100
                                 : text[at] == 5 ? 101
                                                 : static_cast<std::int32_t>(3 * t + 1);
      EXPECT_EQ(targets[2 * t + 1], sound);
      EXPECT_EQ(codes[2 * t + 1], t >= steps ? 0 : t == 0 ? 102 : targets[2 * t - 1]);
    }
  }
  EXPECT_EQ(data->eval_batch(0, 0).text_counted, 39);
  const auto turns = data->eval_turns(0, data->eval_batch(0, 0).user->rows[0]);
  EXPECT_EQ(turns.size(), 4u);
  const auto again = DialogueMeaning::from_json(data->meaning().to_json(), "the test");
  EXPECT_EQ(again.form, data->form());
  EXPECT_EQ(again.codec, codec_of_test());
  EXPECT_EQ(Vocabulary::from_json(data->meaning().to_json(), "the test").hash(),
            data->form().vocab_hash);
}

TEST(DialogueBatches, ValidationLeavesOutWhatIsDamaged) {
  const ScratchFolder folder;
  prepared(folder,
           cut_with_target(folder, {.id = "one"}) +
               cut_with_target(folder, {.id = "two", .user = 21 * kHop, .agent = 21 * kHop}));
  write_codes(folder, codec_of_test());
  const std::string audio = folder / "packed/user/audio_00000.pcm";
  std::string bytes = read_whole_file(audio, 16);
  bytes[2000] ^= 4;  // the recording that is written first
  write_whole_file(audio, bytes);
  DialogueConfig config = config_of(folder);
  config.user.train.inputs.clear();
  config.user.on_bad = OnBad::skip;
  config.user.bad_cap = 0.6;
  DuplexConfig model = test::small_duplex();
  model.encoder.subsampling = 8, model.lm.vocab_size = 64, model.codes = 100;
  model.complete();
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  const auto mesh = Mesh::planned(Layout(), 0, 1);
  CpuDevice device;
  ModelInstance instance({model, precision_of("fp64"), 7, true}, device, *mesh,
                         std::size_t{64} << 20);
  instance.initialise(7);
  const auto scores = [&](bool when_read) {
    DialogueConfig own = config;
    if (when_read) own.user.verify_bytes = 0;
    const auto data = DialogueBatches::open(*alone, own);
    DuplexBatches batches(model, data->form().controls);
    DuplexScorer scorer(instance, *data, batches, {.dialogues = {0}, .ear = nullptr});
    return score_set(instance, scorer, 0, nullptr);
  };
  const SetScores read = scores(true), opened = scores(false);
  const std::int64_t targets = read.all.count(kTargetsCounter);
  EXPECT_TRUE(targets == 19 || targets == 20) << targets << " targets of one of two dialogues";
  EXPECT_EQ(read.all.counters, opened.all.counters);
  for (const std::size_t term : {0, 1})
    EXPECT_NEAR(read.all.losses[term] / opened.all.losses[term], 1, 1e-12);
}

TEST(DialogueBatches, RefuseWhatDoesNotFit) {
  const ScratchFolder folder;
  prepared(folder, cut_with_target(folder, {.id = "one"}));
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  const DialogueConfig fine = config_of(folder);
  EXPECT_THROW(DialogueBatches::open(*alone, fine), DataError) << "codes not found";
  write_codes(folder, codec_of_test());
  EXPECT_NO_THROW(DialogueBatches::open(*alone, fine));
  DialogueConfig config = fine;
  config.codec_hash = 98;
  EXPECT_THROW(DialogueBatches::open(*alone, config), DataError) << "of another codec";
  config = fine;
  config.codebooks = 3;
  EXPECT_THROW(DialogueBatches::open(*alone, config), DataError);
  config = fine;
  config.form_hash = 1;
  EXPECT_THROW(DialogueBatches::open(*alone, config), DataError) << "other units";
  config = fine;
  config.vocab_size = 5;
  EXPECT_THROW(DialogueBatches::open(*alone, config), DataError);
  config = fine;
  config.user.frames.stages = 2;
  EXPECT_THROW(DialogueBatches::open(*alone, config), DeckError) << "frames of 40 ms";
}

}  // namespace
}  // namespace choir
