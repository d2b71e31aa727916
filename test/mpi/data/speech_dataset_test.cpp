// Tests that speech of packed folders gives the same batches for any reader and number of ranks;
// the expected batches come from formulas, and from the sampler, which reads nothing.
#include "src/data/speech/speech_dataset.hpp"

#include <cstring>
#include <filesystem>
#include <set>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/models/batch.hpp"
#include "src/data/text/token_samples.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/mpi_test.hpp"
#include "test/support/separate_device.hpp"
#include "test/unit/data/packed_speech.hpp"

namespace choir {
namespace {

using test::kPackedFrames;
using test::PackedSpeech;
using test::ScratchFolder;

constexpr ReaderKind kKinds[] = {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter,
                                 ReaderKind::node};

class SpeechDatasetTest : public testing::Test {
 protected:
  SpeechDatasetTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) folder_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) folder_ = std::make_unique<ScratchFolder>(id, false);
    packed_[0] = {*folder_ / "a", 0, 60, 3};
    packed_[1] = {*folder_ / "b", 1, 17, 1};
    write();
  }
  ~SpeechDatasetTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->along(Axis::data); }
  void write() {
    on_rank_0([&] {
      for (const auto& speech : packed_) speech.write();
    });
  }
  template <class Action>
  void on_rank_0(Action&& action) {
    comm().barrier();
    if (comm().rank() == 0) action();
    comm().barrier();
  }

  SpeechDataConfig config() const {
    SpeechDataConfig c;
    c.train.inputs = {{packed_[0].folder, {}, 0.7, {}}, {packed_[1].folder, {}, 0.3, {}}};
    c.labels = "test";
    c.frames = kPackedFrames;
    c.batching.batch_duration = 9;
    c.batching.buckets = 3;
    c.window = 40;
    c.order_seed = 5;
    return c;
  }

  // True if the batch consists of these rows, checked with the formulas.
  bool holds(const SpeechBatch& batch, std::span<const SpeechRow> rows) const {
    const std::int64_t b = std::max<std::int64_t>(1, std::ssize(rows));
    std::int64_t longest = 1, most = 1, targets = 0;
    for (const auto& row : rows) {
      longest = std::max<std::int64_t>(longest, row.item.samples);
      most = std::max<std::int64_t>(most, row.item.labels);
      targets += row.item.labels;
    }
    const std::int64_t s = (longest + 39) / 40 * 40;  // hop 10, subsampling 4
    bool ok = batch.audio.shape == Shape{b, s} && batch.labels.shape == Shape{b, most} &&
              batch.frame_lengths.shape == Shape{3, b} && batch.targets == targets &&
              std::ssize(batch.rows) == std::ssize(rows);
    if (rows.empty())
      ok = ok && batch.audio_lengths.as<std::int32_t>()[0] == 0 &&
           batch.label_lengths.as<std::int32_t>()[0] == 0 &&
           batch.audio.as<std::uint16_t>()[s - 1] == 0 && batch.labels.as<std::int32_t>()[0] == -1;
    for (std::int64_t r = 0; ok && r < std::ssize(rows); ++r) ok = holds_row(batch, rows, r);
    return ok;
  }
  bool holds_row(const SpeechBatch& batch, std::span<const SpeechRow> rows, std::int64_t r) const {
    const std::int64_t b = batch.audio.shape[0], s = batch.audio.shape[1],
                       most = batch.labels.shape[1];
    const SpeechRow& row = rows[static_cast<std::size_t>(r)];
    const PackedSpeech& speech = packed_[row.item.leaf];
    const std::int64_t u = row.item.utterance, samples = speech.samples(u);
    const auto labels = speech.labels(u);
    bool ok = batch.rows[static_cast<std::size_t>(r)] == row && row.item.samples == samples &&
              batch.audio_lengths.as<std::int32_t>()[r] == samples &&
              batch.label_lengths.as<std::int32_t>()[r] == std::ssize(labels) &&
              batch.sample_ids.as<std::int64_t>()[r] ==
                  row.epoch * 77 + (row.item.leaf == 1 ? 60 : 0) + u;
    const auto* frames = batch.frame_lengths.as<std::int32_t>();
    ok = ok && frames[r] == samples / 10 && frames[b + r] == (samples / 10 + 1) / 2 &&
         frames[2 * b + r] == ((samples / 10 + 1) / 2 + 1) / 2;
    const auto* audio = batch.audio.as<std::uint16_t>() + r * s;
    for (std::int64_t i = 0; ok && i < s; ++i)
      ok = static_cast<std::int16_t>(audio[i]) == (i < samples ? speech.sample(u, i) : 0);
    const auto* ids = batch.labels.as<std::int32_t>() + r * most;
    for (std::int64_t i = 0; ok && i < most; ++i)
      ok = ids[i] == (i < std::ssize(labels) ? labels[static_cast<std::size_t>(i)] : -1);
    return ok;
  }
  // The batch with the audio that `device` gathers, if it holds the audio.
  static SpeechBatch on_host(const SpeechBatch& batch, Device* device,
                             std::vector<std::uint16_t>& audio) {
    if (device == nullptr) return batch;
    ModelBatch rows;
    rows.samples = batch.audio.shape[0];
    const BatchField field{.name = "audio",
                           .view = batch.audio,
                           .resident = batch.resident,
                           .resident_counts = batch.audio_lengths.as<std::int32_t>()};
    const Buffer there(*device, batch.audio.bytes());
    gather_resident(Stream(*device), rows, field, BatchRanks(), there.data());
    audio.resize(static_cast<std::size_t>(batch.audio.count()));
    device->copy_to_host(audio.data(), there.data(), batch.audio.bytes());
    SpeechBatch made = batch;
    made.audio.data = audio.data();
    return made;
  }
  // Steps of 5 micro-batches, which 2, 3 and 4 ranks cannot share evenly.
  // `device`: the one that holds the audio.
  bool trains_right(SpeechDataset& data, const SpeechCursor& from, int rank, int ranks,
                    std::int64_t steps, SpeechCursor* after = nullptr, Device* device = nullptr) {
    constexpr std::int64_t kMicroBatches = 5;
    SpeechSteps expected(data.sampler(), from, kMicroBatches);
    const SpeechOrder order = SpeechOrder::of_rank(from, kMicroBatches, rank, ranks);
    data.start_training(order);
    SpeechStep step;
    bool ok = true;
    for (std::int64_t s = 0; s < steps; ++s) {
      expected.next(step);
      for (std::int64_t place = 0; place < order.places; ++place) {
        std::vector<std::uint16_t> audio;
        const SpeechBatch batch = on_host(data.next(), device, audio);
        const std::int64_t j = rank * ((kMicroBatches + ranks - 1) / ranks) + place;
        ok = ok && batch.step == s && batch.micro_batch == j &&
             batch.step_targets == step.targets && *batch.after == step.after &&
             holds(batch, j < kMicroBatches ? step.micro_batch(j) : std::span<const SpeechRow>());
      }
    }
    if (after != nullptr) *after = step.after;
    return ok;
  }
  // Every utterance of a set occurs once over all ranks, with its text.
  bool evaluates_right(SpeechDataset& data, int set, const PackedSpeech& speech) {
    std::vector<std::int32_t> seen(static_cast<std::size_t>(speech.utterances), 0);
    bool ok = true;
    std::int64_t targets = 0;
    for (std::int64_t call = 0; call < data.eval_calls(set); ++call) {
      const SpeechBatch& batch = data.eval_batch(set, call);
      ok = ok && batch.micro_batch == call * comm().size() + comm().rank();
      std::vector<SpeechRow> rows(batch.rows.begin(), batch.rows.end());
      for (auto& row : rows) {
        ++seen[static_cast<std::size_t>(row.item.utterance)];
        ok = ok && data.eval_text(set, row) == speech.text(row.item.utterance);
        const auto* audio =
            batch.audio.as<std::uint16_t>() + (&row - rows.data()) * batch.audio.shape[1];
        for (std::int64_t i = 0; ok && i < batch.audio.shape[1]; ++i)
          ok = static_cast<std::int16_t>(audio[i]) ==
               (i < row.item.samples ? speech.sample(row.item.utterance, i) : 0);
      }
      targets += batch.targets;
      ok = ok && batch.step_targets > 0;
      comm().all_reduce(&targets, 1, DType::i64, ReduceOp::max);
      targets = 0;
    }
    comm().all_reduce(seen.data(), seen.size(), DType::i32, ReduceOp::sum);
    for (const std::int32_t times : seen) ok = ok && times == 1;
    return ok;
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> folder_;
  PackedSpeech packed_[2];
};

TEST_F(SpeechDatasetTest, SameBatchesForEveryReader) {
  for (const auto kind : kKinds) {
    for (const auto preload : {Preload::none, Preload::host}) {
      SpeechDataConfig c = config();
      c.reader.kind = kind;
      c.reader.preload = preload;
      c.eval = {{"seen", {packed_[0].folder}, {}, 0, 0}, {"other", {packed_[1].folder}, {}, 5, 0}};
      const auto data = SpeechDataset::open(comm(), c);
      EXPECT_ALL_RANKS(data->vocab_size() == 9 && data->sample_rate() == 1000 &&
                       data->utterances() == 77 && data->tokenizer_hash() == 77);
      SpeechCursor after;
      EXPECT_ALL_RANKS(
          trains_right(*data, data->sampler().begin(), comm().rank(), comm().size(), 12, &after))
          << name_of(kind);
      EXPECT_ALL_RANKS(trains_right(*data, after, comm().rank(), comm().size(), 5))
          << name_of(kind) << " resumed";
      EXPECT_ALL_RANKS(data->eval_sets() == 2 && data->eval_name(1) == "other");
      EXPECT_ALL_RANKS(evaluates_right(*data, 0, packed_[0])) << name_of(kind);
      EXPECT_ALL_RANKS(evaluates_right(*data, 1, packed_[1])) << name_of(kind);
      EXPECT_ALL_RANKS(data->wait_seconds() >= 0 && data->bytes() > 0);
    }
  }
}

// Audio that is gathered in the memory of a device that the host cannot read.
TEST_F(SpeechDatasetTest, ResidentAudioIsThatWhichIsRead) {
  SpeechDataConfig c = config();
  c.reader.preload = Preload::device;
  test::SeparateDevice device;
  const auto data = SpeechDataset::open(comm(), c);
  EXPECT_ALL_RANKS(data->resident_bytes(false) > 0);
  data->make_resident(device);
  SpeechCursor after;
  EXPECT_ALL_RANKS(trains_right(*data, data->sampler().begin(), comm().rank(), comm().size(), 12,
                                &after, &device));
  EXPECT_ALL_RANKS(trains_right(*data, after, comm().rank(), comm().size(), 5, nullptr, &device))
      << "resumed";
}

TEST_F(SpeechDatasetTest, PeersGetWhatOneOfThemReads) {
  const auto mesh = Mesh::over_world(Layout(test::world_size(), 1, 1, 1), Transport::automatic);
  SpeechDataConfig c = config();
  c.peers = &mesh->along(Axis::tensor);
  c.eval = {{"v", {packed_[1].folder}, {}, 0, 3}};
  const auto data = SpeechDataset::open(mesh->along(Axis::data), c);
  EXPECT_ALL_RANKS(trains_right(*data, data->sampler().begin(), 0, 1, 6));
  EXPECT_ALL_RANKS(data->eval_utterances(0) == 3);
  for (std::int64_t call = 0; call < data->eval_calls(0); ++call) {
    const SpeechBatch& batch = data->eval_batch(0, call);
    bool ok = true;
    for (std::int64_t r = 0; r < std::ssize(batch.rows); ++r) {
      const auto& item = batch.rows[static_cast<std::size_t>(r)].item;
      ok =
          ok && static_cast<std::int16_t>(
                    batch.audio.as<std::uint16_t>()[r * batch.audio.shape[1] + item.samples - 1]) ==
                    packed_[1].sample(item.utterance, item.samples - 1);
    }
    EXPECT_ALL_RANKS(ok);
  }
  // All ranks fail if the reading rank fails.
  c.verify_bytes = 0;
  c.eval.clear();
  const auto broken = SpeechDataset::open(mesh->along(Axis::data), c);
  on_rank_0([&] { packed_[0].damage(4); });
  const std::string said =
      test::data_error_of([&] { trains_right(*broken, broken->sampler().begin(), 0, 1, 60); });
  EXPECT_ALL_RANKS(said.find("utterance 4 of '" + packed_[0].folder) != std::string::npos) << said;
}

TEST_F(SpeechDatasetTest, DamageIsFoundWhenOpenedOrRead) {
  SpeechDataConfig c = config();
  on_rank_0([&] { packed_[0].damage(13); });
  std::string said = test::data_error_of([&] { SpeechDataset::open(comm(), c); });
  EXPECT_ALL_RANKS(said.find("first: utterance 13 of") != std::string::npos) << said;
  c.on_bad = OnBad::skip;  // 1 of 77 is more than 1 %
  said = test::data_error_of([&] { SpeechDataset::open(comm(), c); });
  EXPECT_ALL_RANKS(said.find("1.30 %, more than 1 %") != std::string::npos) << said;
  c.bad_cap = 0.02;
  const auto without = SpeechDataset::open(comm(), c);
  EXPECT_ALL_RANKS(without->utterances() == 76 && without->sift().count(LeftOut::damaged) == 1);
  EXPECT_ALL_RANKS(
      trains_right(*without, without->sampler().begin(), comm().rank(), comm().size(), 20));
  for (const auto kind : kKinds) {
    c.reader.kind = kind;
    c.verify_bytes = 0;
    c.on_bad = OnBad::stop;
    const auto stops = SpeechDataset::open(comm(), c);
    EXPECT_ALL_RANKS(stops->utterances() == 77);
    said = test::data_error_of([&] {
      stops->start_training(
          SpeechOrder::of_rank(stops->sampler().begin(), 4, comm().rank(), comm().size()));
      for (int call = 0; call < 200; ++call) stops->next();
    });
    EXPECT_ALL_RANKS(said.find("utterance 13 of '" + packed_[0].folder) != std::string::npos)
        << said;
  }
}

// With skip a damaged utterance becomes an empty row, with one warning; too many end the run.
TEST_F(SpeechDatasetTest, DamagedRowsBecomeEmpty) {
  SpeechDataConfig c = config();
  c.verify_bytes = 0;
  c.on_bad = OnBad::skip;
  c.bad_cap = 0.02;
  const auto data = SpeechDataset::open(comm(), c);
  on_rank_0([&] { packed_[0].damage(13); });
  const auto order = SpeechOrder::of_rank(data->sampler().begin(), 4, comm().rank(), comm().size());
  data->start_training(order);
  std::int64_t empty = 0, wrong = 0;
  for (std::int64_t call = 0; call < 20 * order.places; ++call) {
    const SpeechBatch& batch = data->next();
    std::int64_t targets = 0;
    for (std::int64_t r = 0; r < std::ssize(batch.rows); ++r) {
      const auto& item = batch.rows[static_cast<std::size_t>(r)].item;
      const std::int32_t length = batch.audio_lengths.as<std::int32_t>()[r];
      const bool bad = item.leaf == 0 && item.utterance == 13;
      empty += bad;
      targets += batch.label_lengths.as<std::int32_t>()[r];
      wrong += length != (bad ? 0 : item.samples);
      const auto* audio = batch.audio.as<std::uint16_t>() + r * batch.audio.shape[1];
      for (std::int64_t i = 0; bad && i < batch.audio.shape[1]; ++i) wrong += audio[i] != 0;
    }
    wrong += targets != batch.targets;
  }
  comm().all_reduce(&empty, 1, DType::i64, ReduceOp::sum);
  EXPECT_ALL_RANKS(wrong == 0);
  EXPECT_ALL_RANKS(empty >= 2);
  const auto lines = data->take_warnings();
  EXPECT_ALL_RANKS(lines.size() == 1 &&
                   lines[0].find("utterance 13 of '" + packed_[0].folder) != std::string::npos);
  EXPECT_ALL_RANKS(data->take_warnings().empty());
  on_rank_0([&] { packed_[1].damage(5); });  // 2 of 77 are more than 2 %
  const std::string said = test::data_error_of([&] {
    for (int call = 0; call < 400; ++call) data->next();
  });
  EXPECT_ALL_RANKS(said.find("2 of 77 utterances are damaged, more than 2 %") != std::string::npos)
      << said;
}

TEST_F(SpeechDatasetTest, RefusalsReachAllRanks) {
  const auto expect = [&](const SpeechDataConfig& c, const std::string& words) {
    const std::string said = test::data_error_of([&] { SpeechDataset::open(comm(), c); });
    EXPECT_ALL_RANKS(said.find(words) != std::string::npos) << "said '" << said << "'";
  };
  SpeechDataConfig c = config();
  c.labels = "other";
  expect(c, "labels.other.bin");
  c = config();
  c.sample_rate = 16000;
  expect(c, "has 1000 Hz, the model 16000 Hz");
  c = config();
  c.tokenizer_hash = 3;
  expect(c, "use tokenizer 000000000000004d, the model 0000000000000003");
  c = config();
  c.vocab_size = 8;
  expect(c, "model.vocab_size is 8, the labels 'test' need 9");
  c = config();
  c.train.inputs[1].folder = *folder_ / "nothing";
  expect(c, "nothing");
  packed_[1].crowded = {2};
  write();
  expect(config(), "CTC is impossible");
  c = config();
  c.batching.batch_duration = 2;
  bool refused = false;
  packed_[1].crowded.clear();
  write();
  try {
    SpeechDataset::open(comm(), c);
  } catch (const DeckError& error) {
    refused = std::string(error.what()).find("data.batch_duration is 2 s") != std::string::npos;
  }
  EXPECT_ALL_RANKS(refused);
}

// A shard that shrinks during the run is named on every rank, and no rank hangs.
TEST_F(SpeechDatasetTest, FailuresUnderWayReachAllRanks) {
  for (const auto kind : kKinds) {
    write();
    SpeechDataConfig c = config();
    c.reader.kind = kind;
    const auto data = SpeechDataset::open(comm(), c);
    data->start_training(
        SpeechOrder::of_rank(data->sampler().begin(), comm().size(), comm().rank(), comm().size()));
    data->next();
    on_rank_0([&] {
      for (int shard = 0; shard < 3; ++shard)
        std::filesystem::resize_file(audio_shard_path(packed_[0].folder, shard), 64);
    });
    std::string said;
    for (int call = 0; call < 40 && said.empty(); ++call)
      said = test::data_error_of([&] { data->next(); });
    EXPECT_ALL_RANKS(said.find("/a/audio_0000") != std::string::npos) << said;
  }
}

TEST_F(SpeechDatasetTest, NothingIsAllocatedForABatch) {
  for (const auto kind : kKinds) {
    SpeechDataConfig c = config();
    c.reader.kind = kind;
    const auto data = SpeechDataset::open(comm(), c);
    data->start_training(
        SpeechOrder::of_rank(data->sampler().begin(), comm().size(), comm().rank(), comm().size()));
    for (int call = 0; call < 60; ++call) data->next();
    const std::int64_t before = test::allocations();
    for (int call = 0; call < 30; ++call) data->next();
    const std::int64_t counted = test::allocations() - before;
    EXPECT_ALL_RANKS(counted == 0) << name_of(kind) << ": " << counted;
  }
}

TEST_F(SpeechDatasetTest, SaysWhatItIsMadeOf) {
  SpeechDataConfig c = config();
  c.filter.max_duration = 3;
  c.eval = {{"clean", {packed_[1].folder}, {}, 0, 0}};
  const std::string text = SpeechDataset::open(comm(), c)->to_string();
  for (const char* words : {"longer than data.max_duration", "blend 70.00 %", "3 buckets up to",
                            "padding", "% without buckets", "validation 'clean'", "reader own"})
    EXPECT_ALL_RANKS(text.find(words) != std::string::npos) << words << " in\n" << text;
}

}  // namespace
}  // namespace choir
