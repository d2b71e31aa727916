// The head in chunks of rows against the head computed whole, and against numbers of another
// program; attention in tiles of positions against attention to all of them at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "choir/run/model_instance.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/models/token_losses.hpp"
#include "test/support/head_golden.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

constexpr std::int64_t kSamples = 2, kPositions = 5, kRows = kSamples * kPositions;

GptConfig model_of(std::int64_t chunk, bool tied = false) {
  GptConfig c{.vocab_size = 11,
              .block_size = kPositions,
              .n_layer = 1,
              .n_head = 2,
              .n_kv_head = 2,
              .n_embd = 16,
              .ffn_width = 24,
              .tied = tied};
  c.label_smoothing = 0.1, c.z_loss = 0.02, c.head_chunk = chunk;
  return c;
}

struct Results {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
};

std::vector<double> numbers(const TensorView& view) {
  std::vector<double> list;
  for (std::int64_t i = 0; i < view.count(); ++i)
    list.push_back(ref::load(view.data, view.dtype, i));
  return list;
}

/// The beginnings of the documents of all positions, which differ between the sequences.
constexpr std::array<std::int32_t, kRows> kBegins{0, 0, 2, 2, 2, 0, 1, 1, 1, 4};

/// Losses and gradients of one micro-batch; with `documents`, its sequences consist of several.
Results results_of(const GptConfig& config, const char* precision,
                   const std::vector<std::string>& freeze = {}, Mode mode = Mode::train,
                   bool documents = false) {
  CpuDevice device;
  const auto mesh = Mesh::planned(Layout(), 0, 1);
  ModelInstance instance({.model = config,
                          .precision = precision_of(precision),
                          .seed = 7,
                          .training = true,
                          .freezing = {freeze, {}}},
                         device, *mesh, std::size_t{64} << 20);
  instance.initialise(7);
  std::vector<std::int32_t> ids(kRows), targets(kRows);
  for (std::int64_t i = 0; i < kRows; ++i) {
    ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((i * 7 + 3) % config.vocab_size);
    targets[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>((i * 5 + 1) % config.vocab_size);
  }
  targets[3] = -1;  // in the first chunk of four rows
  const TensorView input{ids.data(), DType::i32, {kRows}};
  const TensorView wanted{targets.data(), DType::i32, {kRows}};
  Sequence sequence{.batch = kSamples, .tokens = kPositions};
  std::vector<std::int32_t> places(kRows);
  for (std::size_t i = 0; i < places.size(); ++i)
    places[i] = static_cast<std::int32_t>(i) % static_cast<std::int32_t>(kPositions) - kBegins[i];
  if (documents) {
    sequence.document_positions = kPositions;
    sequence.document_begins = kBegins.data(), sequence.positions_in_document = places.data();
  }
  instance.pass().begin(mode, sequence, 40);
  for (const Bucket& bucket : instance.parameters().buckets())
    if (bucket.trainable) instance.storage().begin_gradients(instance.stream(), bucket);
  Gpt& gpt = instance.as<Gpt>();
  Tensor losses = gpt.loss(instance.pass(), input, wanted, 1.0 / 9);
  Results results{.losses = numbers(losses), .gradients = {}};
  if (mode != Mode::train) return results;
  losses.reset();
  gpt.backward(instance.pass(), input);
  EXPECT_EQ(instance.arena().live(), 0u) << "tensors leaked from the pass";
  for (const Parameter& p : instance.parameters().parameters())
    if (p.trainable) results.gradients[p.name] = numbers(p.gradient);
  return results;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

/// The largest difference, relative to the largest number of the tensor.
double distance(const Results& a, const Results& b) {
  double most = 0;
  const auto compare = [&](const std::vector<double>& x, const std::vector<double>& y) {
    EXPECT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
      most = std::max(most, std::abs(x[i] - y[i]) / largest(x));
  };
  compare(a.losses, b.losses);
  EXPECT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, values] : a.gradients) compare(values, b.gradients.at(name));
  return most;
}

TEST(HeadChunk, AnyNumberOfRowsGivesTheSameLossesAndGradients) {
  for (const bool tied : {false, true}) {
    const Results whole = results_of(model_of(0, tied), "fp64");
    ASSERT_EQ(whole.losses.size(), 2u * kRows);
    for (const std::int64_t chunk : {1, 3, 4, 9})
      EXPECT_LE(distance(whole, results_of(model_of(chunk, tied), "fp64")), 1e-13) << chunk;
    // A chunk that has all rows is the head without chunks, bit for bit.
    EXPECT_EQ(distance(whole, results_of(model_of(kRows, tied), "fp64")), 0);
    EXPECT_EQ(distance(whole, results_of(model_of(GptConfig::kAutoChunk, tied), "fp64")), 0);
  }
}

// Gradients of chunks are added in f32. Sums in bf16 would differ by 2^-8.
TEST(HeadChunk, GradientsOfChunksAreAddedInTheTypeOfGradients) {
  for (const char* precision : {"bf16-mixed", "fp32"}) {
    const Results whole = results_of(model_of(0), precision),
                  one = results_of(model_of(1), precision);
    const std::vector<double>& a = whole.gradients.at("head.weight");
    const std::vector<double>& b = one.gradients.at("head.weight");
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    EXPECT_LE(most, 20 * 0x1p-24 * largest(a)) << precision;
  }
}

/// Rotary positions, grouped queries, norms of queries and keys, biases, and windows or not.
GptConfig attending(std::int64_t tile, std::int64_t window = 0) {
  GptConfig c = model_of(0);
  c.n_layer = 2, c.n_kv_head = 1, c.position = Position::rope, c.qk_norm = true;
  c.window = window, c.attention_chunk = tile;
  return c;
}

TEST(AttentionChunk, AnyNumberOfPositionsGivesTheSameLossesAndGradients) {
  for (const std::int64_t window : {0, 2}) {
    const Results whole = results_of(attending(0, window), "fp64");
    for (const std::int64_t tile : {1, 2, 4, 5, 9})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        GptConfig c = attending(tile, window);
        c.recompute = recompute;
        EXPECT_LE(distance(whole, results_of(c, "fp64")), 1e-13) << tile << " of window " << window;
      }
  }
  GptConfig wide = attending(0);
  wide.qk_norm_span = QkNormSpan::width;
  const Results whole = results_of(wide, "fp64");
  wide.attention_chunk = 3;
  EXPECT_LE(distance(whole, results_of(wide, "fp64")), 1e-13);
}

// A negative control: keys of another sequence, or a gradient of keys that lacks a tile, show.
TEST(AttentionChunk, TheTestSeesAWindow) {
  EXPECT_GT(distance(results_of(attending(0), "fp64"), results_of(attending(2, 2), "fp64")), 1e-4);
}

TEST(AttentionChunk, DocumentsAreSeparatedInTilesToo) {
  const auto divided = [](std::int64_t tile, std::int64_t window) {
    return results_of(attending(tile, window), "fp64", {}, Mode::train, true);
  };
  const Results whole = divided(0, 0);
  for (const std::int64_t tile : {1, 2, 4})
    EXPECT_LE(distance(whole, divided(tile, 0)), 1e-13) << tile;
  EXPECT_LE(distance(divided(0, 2), divided(2, 2)), 1e-13) << "of a window";
  // A negative control: keys of the document before would show.
  EXPECT_GT(distance(results_of(attending(0), "fp64"), whole), 1e-4);
}

TEST(AttentionChunk, EvaluationHasTheSameLosses) {
  const Results whole = results_of(attending(0), "fp64", {}, Mode::evaluate);
  EXPECT_LE(distance(whole, results_of(attending(2), "fp64", {}, Mode::evaluate)), 1e-14);
}

TEST(AttentionChunk, FrozenProductsHaveNoGradient) {
  const std::vector<std::string> freeze{"*.qkv.*", "*.attention.output.*"};
  const Results whole = results_of(attending(0), "fp64", freeze);
  EXPECT_LE(distance(whole, results_of(attending(2), "fp64", freeze)), 1e-13);
}

// Each tile rounds its part of the gradients of keys and values once to bf16, and f32 adds the
// parts: at most one rounding of the sum of their magnitudes more than without tiles, whose result
// is rounded once, too.
TEST(AttentionChunk, GradientsOfKeysAreAddedInF32) {
  const Results exact = results_of(attending(0), "fp32");
  const double whole = distance(exact, results_of(attending(0), "bf16-mixed"));
  const double tiled = distance(exact, results_of(attending(1), "bf16-mixed"));
  EXPECT_LE(tiled, 2 * whole) << "roundings of bf16 without tiles are " << whole;
}

TEST(HeadChunk, AFrozenHeadHasNoGradient) {
  const Results whole = results_of(model_of(0), "fp64", {"head.*"});
  EXPECT_EQ(whole.gradients.count("head.weight"), 0u);
  EXPECT_LE(distance(whole, results_of(model_of(3), "fp64", {"head.*"})), 1e-13);
}

TEST(HeadChunk, EvaluationHasTheSameLosses) {
  const Results whole = results_of(model_of(0), "fp64", {}, Mode::evaluate);
  EXPECT_LE(distance(whole, results_of(model_of(3), "fp64", {}, Mode::evaluate)), 1e-14);
}

TEST(HeadChunk, TheUsualOneDependsOnVocabularyAndType) {
  EXPECT_EQ(usual_head_chunk(128256, DType::bf16), 1024);  // 1046 have 256 MiB
  EXPECT_EQ(usual_head_chunk(128256, DType::f32), 1024);   // 523 would be too few
  EXPECT_EQ(usual_head_chunk(50257, DType::bf16), 2560);
  EXPECT_EQ(usual_head_chunk(1024, DType::f32), 0);
  EXPECT_EQ(usual_head_chunk(65, DType::f64), 0);
}

TEST(HeadChunk, EqualsTheNumbersOfAnotherProgram) {
  using namespace test;
  CpuDevice device;
  Stream stream(device);
  Arena arena(device, 1 << 20);
  const Precision precision = precision_of("fp64");
  ParameterSet parameters;
  parameters.begin_bucket("head");
  Linear head(parameters, "head", kHeadWidth, kHeadVocabulary,
              {.bias = false, .weight_shard = vocabulary_shard()});
  parameters.place(1);
  std::vector<double> values(static_cast<std::size_t>(parameters.flat_size())),
      gradients(values.size());
  parameters.bind(precision, values.data(), values.data(), gradients.data());
  Parameter& weight = parameters.parameters().front();
  std::copy(std::begin(kHeadWeight), std::end(kHeadWeight), weight.value.as<double>());
  HostTensor input(DType::f64, {kHeadRows, kHeadWidth}), targets(DType::i32, {kHeadRows});
  for (int i = 0; i < kHeadRows * kHeadWidth; ++i) input.set(i, kHeadInput[i]);
  for (int r = 0; r < kHeadRows; ++r) targets.set(r, kHeadTargetIds[r]);
  ModelBatch batch;
  batch.scale = 1.0 / kHeadTargets;
  for (const HeadGolden& golden : kHeadGoldens)
    for (const std::int64_t chunk : {1, 3, 7}) {
      SCOPED_TRACE(fmt::format("smoothing {} z {} chunk {}", golden.smoothing, golden.z, chunk));
      Pass pass(stream, arena, precision, 1);
      pass.begin(Mode::train, {.batch = 1, .tokens = kHeadRows}, 0);
      weight.gradient_live = false;
      const Tensor losses = chunked_token_losses(pass, head, Tensor().view(input), batch,
                                                 {.targets = targets,
                                                  .vocabulary = kHeadVocabulary,
                                                  .label_smoothing = golden.smoothing,
                                                  .z_loss = golden.z},
                                                 chunk);
      const Tensor d_input = pass.pop();
      double loss = 0;
      for (std::int64_t i = 0; i < losses.count(); ++i)
        loss += (i < kHeadRows ? 1 : golden.z) * losses.as<double>()[i];
      EXPECT_NEAR(loss / kHeadTargets, golden.loss, 1e-14);
      for (int i = 0; i < kHeadRows * kHeadWidth; ++i)
        EXPECT_NEAR(d_input.as<double>()[i], golden.d_input[i], 1e-14);
      for (int i = 0; i < kHeadVocabulary * kHeadWidth; ++i)
        EXPECT_NEAR(weight.gradient.as<double>()[i], golden.d_weight[i], 1e-14);
    }
}

}  // namespace
}  // namespace choir
