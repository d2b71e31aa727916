// Promises of keys, each compared with an expectation of its own: training-only features are not
// used in an evaluation, decay is for matrices, rows are limited, and features follow a formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "choir/run/training_data.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/verify/laid_out_run.hpp"
#include "src/lab/verify/verify_record.hpp"
#include "src/models/gpt/family.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/step/engine_options.hpp"
#include "test/unit/train/keys/key_runs.hpp"

namespace choir {
namespace {

/// A deck for `choir verify` on one rank without a launcher.
class OneRank {
 public:
  OneRank(const std::string& path, const std::vector<std::string>& overrides)
      : deck_(read_deck(test::families(), path, overrides)) {
    place_.device = std::make_unique<CpuDevice>();
    place_.mesh = Mesh::planned(Layout(), 0, 1);
    run_ = std::make_unique<LaidOutRun>(deck_, place_);
  }
  LaidOutRun& run() { return *run_; }
  Engine& engine() { return run_->engine(); }
  std::unique_ptr<SyntheticBatches> batches() {
    const EngineOptions& options = engine().options();
    return options.model.family().synthetic_batches(options.model, options.seed,
                                                    options.micro_batch_size);
  }
  double evaluated() {
    double sum = 0;
    for (const double term : engine().instance().loss_sums(batches()->micro_batch(0))) sum += term;
    return sum;
  }

 private:
  Deck deck_;
  Workplace place_;
  std::unique_ptr<LaidOutRun> run_;
};

/// Values of a record's tensors whose names have this prefix, by name.
std::map<std::string, std::vector<double>> values_of(const RunRecord& record,
                                                     const std::string& prefix) {
  std::map<std::string, std::vector<double>> all;
  for (const RunRecord::Tensor& tensor : record.tensors) {
    const auto first = record.values.begin() + tensor.first;
    if (tensor.name.starts_with(prefix)) all[tensor.name] = {first, first + tensor.count};
  }
  return all;
}

// Masks of SpecAugment, dither, dropout, stochastic depth and label smoothing are for training: an
// evaluation is that of a deck without all of them, bit by bit.
TEST(KeyPromises, AnEvaluationHasNothingThatOnlyTrainingHas) {
  struct Case {
    const char* deck;
    std::vector<std::string> with, without;
  };
  const auto of_encoder = [](const std::string& part, bool on) {
    std::vector<std::string> words;
    for (const char* word :
         {"freq_masks=4", "time_masks=6", "dither=0.1", "dropout=0.4", "stochastic_depth=0.9"}) {
      const std::string text(word);
      words.push_back(part + (on ? text : text.substr(0, text.find('=')) + "=0"));
    }
    return words;
  };
  const std::vector<Case> cases{
      {"inputs/verify_gpt.json",
       {"model.dropout=0.4", "train.label_smoothing=0.3"},
       {"model.dropout=0", "train.label_smoothing=0"}},
      {"inputs/verify_lora.json", {"model.lora.dropout=0.6"}, {"model.lora.dropout=0"}},
      {"inputs/verify_asr.json", of_encoder("model.", true), of_encoder("model.", false)},
      {"inputs/verify_salm.json", of_encoder("model.encoder.", true),
       of_encoder("model.encoder.", false)},
      {"inputs/verify_duplex.json", of_encoder("model.encoder.", true),
       of_encoder("model.encoder.", false)}};
  for (const Case& it : cases) {
    SCOPED_TRACE(it.deck);
    OneRank with(it.deck, it.with), without(it.deck, it.without);
    // The factors of adapters begin at zero, so one step is trained first, the same for both.
    if (it.deck == std::string("inputs/verify_lora.json")) {
      for (OneRank* rank : {&with, &without})
        for (const StoredTensor& tensor : held_tensors(rank->engine()))
          for (const StoredPiece& piece : tensor.pieces)
            if (tensor.name.starts_with("parameters/") && is_adapter(tensor.name))
              std::fill_n(static_cast<double*>(piece.data), piece.count, 0.03);
      with.engine().instance().publish(), without.engine().instance().publish();
    }
    EXPECT_EQ(with.evaluated(), without.evaluated());
    const double trained = with.run().step(0).loss, plain = without.run().step(0).loss;
    EXPECT_GT(std::abs(trained - plain), 1e-6 * plain) << "training has them";
  }
}

// AdamW's decay is decoupled: after one step a matrix with decay is smaller by rate x decay of its
// old value, and a vector is the same. A tensor with two or more extents counts as a matrix.
TEST(KeyPromises, DecayIsForTheMatricesOfEveryFamily) {
  constexpr double kDecay = 0.5;
  for (const char* deck :
       {"inputs/verify_gpt.json", "inputs/verify_lora.json", "inputs/verify_modern.json",
        "inputs/verify_gemma.json", "inputs/verify_asr.json", "inputs/verify_salm.json",
        "inputs/verify_duplex.json", "inputs/verify_codec.json"}) {
    SCOPED_TRACE(deck);
    OneRank decayed(deck, {"optimizer.weight_decay=0.5"});
    OneRank plain(deck, {"optimizer.weight_decay=0"});
    RunRecord before, with, without;
    before.take(plain.engine());
    const double rate = decayed.run().step(0).learning_rate;
    EXPECT_EQ(plain.run().step(0).learning_rate, rate);
    with.take(decayed.engine()), without.take(plain.engine());
    const auto first = values_of(before, "parameters/"), a = values_of(with, "parameters/"),
               b = values_of(without, "parameters/");
    std::map<std::string, bool> trained;
    for (const Parameter& p : plain.engine().instance().parameters().parameters())
      trained["parameters/" + p.name] = p.trainable;
    int matrices = 0, vectors = 0;
    for (const RunRecord::Tensor& tensor : before.tensors) {
      if (!tensor.name.starts_with("parameters/")) continue;
      const bool matrix = tensor.shape.find(',') != std::string::npos && trained[tensor.name];
      (matrix ? matrices : vectors) += 1;
      const auto &w = first.at(tensor.name), &x = a.at(tensor.name), &y = b.at(tensor.name);
      double worst = 0, moved = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double expected = matrix ? rate * kDecay * w[i] : 0;
        worst = std::max(worst, std::abs(y[i] - x[i] - expected));
        moved = std::max(moved, std::abs(expected));
      }
      // Three roundings of numbers below 4.
      EXPECT_LE(worst, matrix ? 3 * 4 * 0x1p-53 : 0) << tensor.name;
    }
    EXPECT_GT(matrices, 2);
    EXPECT_GT(vectors, 1);
  }
}

// A codec's features of silence are (ln guard - mean) / deviation. A model that is zero except for
// its last bias predicts that bias, and its loss is the distance between the two, in units of ln.
TEST(KeyPromises, FeaturesOfACodecAreWhatTheFormulaSays) {
  constexpr double kBias = 0.25;
  struct Case {
    double guard, mean, deviation;
  };
  for (const Case& it : {Case{1e-6, -7, 3}, Case{1e-3, -7, 3}, Case{1e-6, 2, 3},
                         Case{1e-6, -7, 0.5}, Case{1e-2, 1.5, 4}}) {
    OneRank rank(
        "inputs/verify_codec.json",
        {fmt::format("model.log_guard={}", it.guard), fmt::format("model.feature_mean={}", it.mean),
         fmt::format("model.feature_deviation={}", it.deviation)});
    for (const StoredTensor& tensor : held_tensors(rank.engine()))
      for (const StoredPiece& piece : tensor.pieces)
        if (tensor.name.starts_with("parameters/"))
          std::fill_n(static_cast<double*>(piece.data), piece.count,
                      tensor.name == "parameters/decoder.output.bias" ? kBias : 0.0);
    rank.engine().instance().publish();
    const EngineOptions& options = rank.engine().options();
    const BatchShape shape = options.shapes.front();
    HostBatch silence(options.model, shape);
    const auto* frames = silence.batch["frame_lengths"].as<std::int32_t>() + shape.samples;
    double count = 0;
    for (std::int64_t row = 0; row < shape.samples; ++row) count += frames[row];
    const double feature = (std::log(it.guard) - it.mean) / it.deviation;
    const double expected = std::abs(kBias - feature) * it.deviation;
    EXPECT_NEAR(rank.engine().instance().loss_sums(silence.batch)[0] / count, expected,
                1e-12 * expected);
  }
}

/// Rows of the micro-batches of a step, read by the data of the deck.
double rows_of_step(const Deck& deck) {
  Deck copy = deck;
  const BatchSizes batch = resolve_batch(copy, 1);
  const auto mesh = Mesh::planned(Layout(), 0, 1);
  Logger log(false);
  const auto data = copy.family().open_data(copy, batch, *mesh, log);
  resolve_vocabulary(copy, data->vocab_size(), "the test");
  OneRank rank(
      copy.family().name() == "salm" ? "inputs/verify_salm.json" : "inputs/verify_duplex.json", {});
  data->start_training(rank.engine().instance().storage().sharding(), batch.accum, {});
  return data->content(0, rank.engine().instance().model()).samples;
}

// The two micro-batches of a step have exactly as many rows as the keys allow.
TEST(KeyPromises, RowsOfAMicroBatchAreLimited) {
  const test::ScratchFolder folder;
  test::KeyRuns runs(folder);
  const test::KeyBase talks{.name = "talks", .path = "inputs/verify_salm.json", .overrides = {}};
  const test::KeyBase both{.name = "both", .path = "inputs/verify_duplex.json", .overrides = {}};
  const auto of = [&](const test::KeyBase& base, const std::string& rows) {
    std::vector<std::string> words{"data.format=auto", "train.micro_batches=2", "data.buckets=1",
                                   rows};
    if (base.name == "talks")
      words.insert(words.end(), {"data.train=[\"{data}/chat\"]", "model.lm.vocab_size=0",
                                 "data.batch_tokens=4096"});
    else
      words.insert(words.end(),
                   {"data.train=[\"{data}/talk\"]", "model.lm.vocab_size=0", "model.codebooks=2",
                    "model.codes=16", "model.encoder.subsampling=8", "data.batch_duration=60"});
    return rows_of_step(runs.deck(base, words));
  };
  for (const int rows : {1, 3}) {
    EXPECT_EQ(of(talks, fmt::format("data.max_conversations={}", rows)), 2 * rows);
    EXPECT_EQ(of(both, fmt::format("data.max_dialogues={}", rows)), 2 * rows);
  }
  EXPECT_GT(of(talks, "data.max_conversations=0"), 20) << "as many as there is room for";
  EXPECT_GT(of(both, "data.max_dialogues=0"), 20) << "as many as there is room for";
}

// Each key of scaled rotations sets the number of the same name, in every family that has a
// decoder.
TEST(KeyPromises, KeysOfRotationsAreTheNumbersOfTheirNames) {
  const auto scaling_of = [](std::vector<std::string> words) {
    for (std::string& word : words) word = "model." + word;
    words.insert(words.end(), {"model.position=rope", "model.n_head=2"});
    return gpt_of(read_deck(test::families(), "inputs/verify_gpt.json", words)).rope_scaling;
  };
  const ops::RopeScaling llama3 =
      scaling_of({"rope_scaling=llama3", "rope_factor=3", "rope_original=96", "rope_low_factor=1.5",
                  "rope_high_factor=5"});
  const ops::RopeScaling yarn =
      scaling_of({"rope_scaling=yarn", "rope_factor=3", "rope_original=96", "rope_beta_fast=11",
                  "rope_beta_slow=0.5", "rope_truncate=false", "rope_attention_factor=1.7"});
  const std::vector<std::string> words{
      "rope_scaling=longrope",        "rope_factor=3", "rope_original=96",
      "rope_attention_factor=1.6",    "rope_width=4",  "rope_short_factors=[1.5,2]",
      "rope_long_factors=[3,\"4e0\"]"};
  const auto longrope_of = [&](const char* block_size) {
    std::vector<std::string> all = words;
    for (std::string& word : all) word = "model." + word;
    all.insert(all.end(), {"model.position=rope", "model.n_head=2",
                           std::string("model.block_size=") + block_size});
    return angle_scaling(gpt_of(read_deck(test::families(), "inputs/verify_gpt.json", all)));
  };
  EXPECT_EQ(longrope_of("96").divisors, (std::vector<double>{1.5, 2}));
  EXPECT_EQ(longrope_of("97").divisors, (std::vector<double>{3, 4}));
  EXPECT_EQ(ops::rope_attention_factor(longrope_of("97")), 1.6);
  constexpr double kTheta = 500, kPi = 3.14159265358979323846;
  constexpr std::int64_t kWidth = 16;
  for (std::int64_t i = 0; i < kWidth / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / kWidth;
    const double plain = std::pow(kTheta, -exponent), wave = 2 * kPi / plain;
    // Llama 3: long wavelengths are divided, short ones stay, and those between are mixed.
    const double mix = std::clamp((96 / wave - 1.5) / (5 - 1.5), 0.0, 1.0);
    EXPECT_NEAR(ops::rope_frequency(kTheta, llama3, kWidth, i), plain * (mix + (1 - mix) / 3),
                1e-14);
    // YaRN: the limits are the pairs whose waves turn beta times within the original length.
    const auto pair = [](double turns) {
      return kWidth * std::log(96 / (turns * 2 * kPi)) / (2 * std::log(kTheta));
    };
    const double low = std::max(0.0, pair(11)), high = std::min(kWidth - 1.0, pair(0.5));
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(ops::rope_frequency(kTheta, yarn, kWidth, i), plain * (1 - ramp + ramp / 3), 1e-14);
  }
  EXPECT_EQ(ops::rope_attention_factor(yarn), 1.7);
  EXPECT_NEAR(
      ops::rope_frequency(kTheta, scaling_of({"rope_scaling=linear", "rope_factor=3"}), kWidth, 0),
      1.0 / 3, 1e-15);
}

// Reading ahead of training needs a thread; without it the same batches are read on demand.
TEST(KeyPromises, PrefetchIsAThread) {
  const test::ScratchFolder folder;
  test::KeyRuns runs(folder);
  const auto threads = [] {
    std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const test::KeyBase base{.name = "tokens", .path = "inputs/debug.json", .overrides = {}};
  std::vector<std::int32_t> read[2];
  for (const int ahead : {0, 3}) {
    // Text is prepared beside the working folder, but tokens are not.
    std::vector<std::int32_t> tokens(4000);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(i * 31 % 61);
    test::write_native(folder / "a.tok", tokens, 61);
    Deck deck = runs.deck(base, {"data.train=[\"" + (folder / "a.tok") + "\"]",
                                 fmt::format("data.prefetch={}", ahead)});
    const BatchSizes batch = resolve_batch(deck, 1);
    const auto self = make_mpi_communicator(MPI_COMM_SELF, "self");
    const auto mesh = Mesh::over(*self, Layout(), Transport::automatic);
    Logger log(false);
    const auto before = threads();
    const auto data = deck.family().open_data(deck, batch, *mesh, log);
    OneRank rank("inputs/verify_gpt.json", {});
    data->start_training(rank.engine().instance().storage().sharding(), batch.accum, {});
    for (int i = 0; i < 8; ++i) {
      const TensorView inputs = data->next()["inputs"];
      const auto* first = inputs.as<std::int32_t>();
      read[ahead > 0].insert(read[ahead > 0].end(), first, first + inputs.count());
    }
    EXPECT_EQ(threads() - before, ahead > 0 ? 1 : 0);
  }
  EXPECT_EQ(read[0], read[1]);
}

TEST(KeyPromises, TheKernelOfAttentionIsThatOfTheKey) {
  for (const auto& [path, part] : {std::pair("inputs/verify_gpt.json", "model."),
                                   std::pair("inputs/verify_salm.json", "model.lm."),
                                   std::pair("inputs/verify_duplex.json", "model.lm.")}) {
    const auto refusal = [&, path = path, part = part](const std::string& kernel,
                                                       const std::string& device) -> std::string {
      try {
        read_deck(
            test::families(), path,
            {part + ("attention=" + kernel), "device=" + device, "train.precision=bf16-mixed"});
      } catch (const DeckError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal("cudnn", "cuda"), "");
    EXPECT_EQ(refusal("own", "cpu"), "");
    EXPECT_NE(refusal("cudnn", "cpu").find(part + std::string("attention = \"cudnn\"")),
              std::string::npos)
        << refusal("cudnn", "cpu");
  }
}

TEST(KeyPromises, EveryFamilyIsMadeByItsName) {
  for (const auto& [path, type] : {std::pair("inputs/verify_gpt.json", "gpt"),
                                   std::pair("inputs/verify_asr.json", "fastconformer"),
                                   std::pair("inputs/verify_salm.json", "salm"),
                                   std::pair("inputs/verify_duplex.json", "duplex"),
                                   std::pair("inputs/verify_codec.json", "codec")}) {
    const Deck deck = read_deck(test::families(), path, {});
    EXPECT_EQ(deck.model.type, type);
    EXPECT_EQ(model_of(deck).family().name(), type);
  }
}

TEST(KeyPromises, LearningRatesFollowTheDataParallelSize) {
  const auto peak = [](const std::string& rule) {
    return schedule_of(read_deck(test::families(), "inputs/verify_gpt.json",
                                 {"optimizer.scale_lr=" + rule, "optimizer.learning_rate=0.01",
                                  "optimizer.min_lr=0.001"}),
                       9);
  };
  EXPECT_DOUBLE_EQ(peak("none").peak, 0.01);
  EXPECT_DOUBLE_EQ(peak("sqrt").peak, 0.03);
  EXPECT_DOUBLE_EQ(peak("linear").peak, 0.09);
  EXPECT_DOUBLE_EQ(peak("linear").floor, 0.009);
}

// The effects of these options are tested on emulated cards (test/mpi_cuda/mesh_test.cpp).
TEST(KeyPromises, CollectivesOfGpusHaveTheOptionsOfTheKeys) {
  const auto options = [](const std::vector<std::string>& keys) {
    return device_transport_of(read_deck(test::families(), "inputs/verify_gpt.json", keys));
  };
  EXPECT_EQ(options({}).free_multiprocessors, 0);
  EXPECT_TRUE(options({}).register_memory);
  EXPECT_EQ(options({"parallel.free_sms=auto"}).free_multiprocessors, 0);
  EXPECT_EQ(options({"parallel.free_sms=16"}).free_multiprocessors, 16);
  EXPECT_FALSE(options({"parallel.register_memory=false"}).register_memory);
  EXPECT_EQ(options({"parallel.zero=1"}).replica_groups, 1);
  EXPECT_EQ(options({"parallel.transport=staged"}).way, DeviceTransport::Way::staged);
  EXPECT_THROW(options({"parallel.free_sms=65"}), DeckError);
}

}  // namespace
}  // namespace choir
