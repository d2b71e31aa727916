// Compares every parameter's gradient of the whole model in fp64 with central finite differences of
// the loss.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "choir/run/model_instance.hpp"
#include "kernels/sums/sums.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/gpt/gpt.hpp"

namespace choir {
namespace {

constexpr std::int64_t kBatch = 2, kTokens = 5;

GptConfig small_gpt() {
  return {.vocab_size = 11,
          .block_size = 6,
          .n_layer = 2,
          .n_head = 4,
          .n_kv_head = 4,
          .n_embd = 16,
          .ffn_width = 24};
}

class Model {
 public:
  explicit Model(const GptConfig& config)
      : mesh_(Mesh::planned(Layout(), 0, 1)),
        z_loss_(config.z_loss),
        instance_({config, precision_of("fp64"), 7, true}, device_, *mesh_, std::size_t{64} << 20) {
    instance_.initialise(7);
    // Parameters differ from the symmetric start: norms not 1, biases not 0, larger weights.
    for (Parameter& p : instance_.parameters().parameters())
      for (std::int64_t i = 0; i < p.local_count(); ++i)
        p.master.as<double>()[i] +=
            0.3 * normal_at(philox_key(3, p.name), static_cast<std::uint64_t>(i));
    for (std::int64_t i = 0; i < kBatch * kTokens; ++i) {
      ids_[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>((i * 7 + 3) % config.vocab_size);
      targets_[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>((i * 5 + 1) % config.vocab_size);
    }
    targets_[3] = -1;  // one position is not counted
  }

  ParameterSet& parameters() { return instance_.parameters(); }

  double loss() {
    begin();
    for (const Bucket& bucket : instance_.parameters().buckets())
      instance_.storage().begin_gradients(instance_.stream(), bucket);
    const Tensor losses =
        instance_.as<Gpt>().loss(instance_.pass(), view(ids_), view(targets_), kScale);
    const double sum = weighted(losses);
    instance_.as<Gpt>().backward(instance_.pass(), view(ids_));
    return kScale * sum;
  }
  /// The loss of the same positions, all with the target `symbol`; < 0: with their own.
  double evaluate(std::int32_t symbol) {
    std::vector<std::int32_t> targets = targets_;
    for (std::int32_t& target : targets)
      if (target >= 0 && symbol >= 0) target = symbol;
    instance_.pass().begin(Mode::evaluate, {.batch = kBatch, .tokens = kTokens}, 40);
    const Tensor losses =
        instance_.as<Gpt>().loss(instance_.pass(), view(ids_), view(targets), kScale);
    return kScale * weighted(losses);
  }
  std::size_t live() { return instance_.arena().live(); }

 private:
  static constexpr double kScale = 1.0 / 9;
  void begin() { instance_.pass().begin(Mode::train, {.batch = kBatch, .tokens = kTokens}, 40); }
  static TensorView view(std::vector<std::int32_t>& ids) {
    return {ids.data(), DType::i32, {static_cast<std::int64_t>(ids.size())}};
  }
  /// The second row is that of the z-loss.
  double weighted(const Tensor& losses) const {
    double sum = 0;
    for (std::int64_t i = 0; i < losses.count(); ++i)
      sum += (i < kBatch * kTokens ? 1 : z_loss_) * losses.as<double>()[i];
    return sum;
  }
  CpuDevice device_;
  std::unique_ptr<Mesh> mesh_;
  double z_loss_;
  ModelInstance instance_;
  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(kBatch * kTokens);
  std::vector<std::int32_t> targets_ = std::vector<std::int32_t>(kBatch * kTokens);
};

void check_gradients(const GptConfig& config) {
  Model model(config);
  model.loss();
  EXPECT_EQ(model.live(), 0u) << "tensors leaked from the pass";
  std::vector<std::vector<double>> analytic;
  for (const Parameter& p : model.parameters().parameters())
    analytic.emplace_back(p.gradient.as<double>(), p.gradient.as<double>() + p.local_count());
  // Central differences: truncation h^2 |f'''| / 6 and rounding eps |f| / h balance near h = 1e-5.
  constexpr double kStep = 1e-5;
  std::size_t index = 0;
  for (Parameter& p : model.parameters().parameters()) {
    const std::vector<double>& expected = analytic[index++];
    double norm = 0;
    for (const double g : expected) norm = std::max(norm, std::abs(g));
    EXPECT_GT(norm, 1e-6) << p.name << " has no gradient";
    for (std::int64_t i = 0; i < p.local_count();
         i += std::max<std::int64_t>(1, p.local_count() / 13)) {
      double& w = p.master.as<double>()[i];
      const double kept = w;
      w = kept + kStep;
      const double above = model.loss();
      w = kept - kStep;
      const double below = model.loss();
      w = kept;
      EXPECT_NEAR((above - below) / (2 * kStep), expected[static_cast<std::size_t>(i)],
                  1e-7 * std::max(1.0, norm))
          << p.name << "[" << i << "]";
    }
  }
}

TEST(GptGradient, NanoGpt) {
  check_gradients(small_gpt());
}

TEST(GptGradient, Llama) {
  GptConfig c = small_gpt();
  c.n_kv_head = 2;
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  c.tied = false;
  c.bias = false;
  check_gradients(c);
}

GptConfig modern_gpt() {
  GptConfig c = small_gpt();
  c.n_layer = 3;
  c.n_kv_head = 2;
  c.own_head_width = 6;
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  c.rope_scaling = {.kind = ops::RopeScaling::Kind::yarn, .factor = 4, .original = 64};
  c.rope_skip_interval = 2;
  c.qk_norm = true;
  c.bias = false;
  c.qkv_bias = Biases::yes;
  c.window = 3;
  c.window_skip_interval = 3;
  return c;
}

TEST(GptGradient, NormsOfHeadsWindowsAndScaledPositions) {
  GptConfig c = modern_gpt();
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    c.recompute = recompute;
    check_gradients(c);
  }
  c.rope_scaling = {
      .kind = ops::RopeScaling::Kind::llama3, .factor = 8, .original = 16, .low = 1, .high = 4};
  c.qkv_bias = Biases::as_bias;
  check_gradients(c);
}

/// Gemma 3 with the soft caps of Gemma 2.
GptConfig gemma_gpt() {
  GptConfig c = modern_gpt();
  c.activation = ops::Activation::geglu;
  c.norm_offset = true;
  c.norm_place = NormPlace::both;
  c.embedding_scale = 4;
  c.attention_scale = 0.5;
  c.attention_softcap = 2;
  c.logit_softcap = 3;
  c.rope_local_theta = 50;
  c.rope_scaling = {.kind = ops::RopeScaling::Kind::linear, .factor = 8};
  c.rope_scaling_layers = ScaledLayers::full;
  c.qkv_bias = Biases::as_bias;
  return c;
}

TEST(GptGradient, NormsBehindBranchesAndSoftCaps) {
  GptConfig c = gemma_gpt();
  for (const int tiles : {1, 2})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      c.recompute = recompute, c.tile = tiles;
      check_gradients(c);
    }
  c.head_chunk = 3, c.tied = false;
  check_gradients(c);
}

TEST(GptGradient, ParallelBranchesAndPartsOfHeadsThatRotate) {
  GptConfig c = small_gpt();
  c.position = Position::rope;
  c.rope_width = 2;
  c.parallel_branches = true;
  c.tied = false;
  for (const NormPlace place : {NormPlace::pre, NormPlace::post, NormPlace::both})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      c.norm_place = place, c.recompute = recompute;
      check_gradients(c);
    }
}

TEST(GptGradient, NormsOfTheWholeWidthOfQueriesAndKeys) {
  GptConfig c = modern_gpt();
  c.qk_norm_span = QkNormSpan::width;
  c.norm_place = NormPlace::post;
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    c.recompute = recompute;
    check_gradients(c);
  }
}

TEST(GptGradient, NormsBehindBranchesAlone) {
  GptConfig c = modern_gpt();
  c.norm_place = NormPlace::post;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    c.recompute = recompute;
    check_gradients(c);
  }
}

TEST(GptGradient, Multipliers) {
  GptConfig c = small_gpt();
  c.embedding_scale = 3, c.residual_scale = 0.4, c.logit_scale = 0.25, c.attention_scale = 0.7;
  c.dropout = 0.25;
  check_gradients(c);
}

TEST(GptGradient, BiasesOfAPart) {
  GptConfig c = small_gpt();
  c.qkv_bias = Biases::no;
  check_gradients(c);
  c.bias = false, c.qkv_bias = Biases::as_bias, c.norm_bias = Biases::yes;
  check_gradients(c);
}

TEST(GptGradient, TanhWithDropout) {
  GptConfig c = small_gpt();
  c.activation = ops::Activation::gelu_tanh;
  c.dropout = 0.25;
  check_gradients(c);
}

TEST(GptGradient, SmoothedLabels) {
  for (const double smoothing : {0.1, 0.9}) {
    GptConfig c = small_gpt();
    c.label_smoothing = smoothing;
    check_gradients(c);
  }
}

TEST(GptGradient, ZLoss) {
  GptConfig c = small_gpt();
  c.z_loss = 0.02, c.label_smoothing = 0.1;
  check_gradients(c);
}

// Ten rows in chunks of three.
TEST(GptGradient, HeadInChunks) {
  GptConfig c = small_gpt();
  c.head_chunk = 3, c.z_loss = 0.02, c.label_smoothing = 0.1;
  for (const bool tied : {false, true}) {
    c.tied = tied;
    check_gradients(c);
  }
}

// Sequences of five in tiles of two; the last tile has one position.
TEST(GptGradient, AttentionInTiles) {
  for (GptConfig c : {small_gpt(), gemma_gpt()})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      c.attention_chunk = 2, c.recompute = recompute;
      check_gradients(c);
    }
}

// Smoothed targets are a mixture of targets, and the loss is the same mixture: 1 - e times that of
// the token, e times the mean over all symbols. Evaluation does not smooth.
TEST(GptGradient, OnlyTheTrainingLossIsSmoothed) {
  constexpr double kSmoothing = 0.3;
  GptConfig c = small_gpt();
  Model plain(c);
  c.label_smoothing = kSmoothing;
  Model smooth(c);
  const double own = plain.evaluate(-1);
  double all = 0;
  for (std::int32_t symbol = 0; symbol < c.vocab_size; ++symbol) all += plain.evaluate(symbol);
  const double mean = all / static_cast<double>(c.vocab_size);
  EXPECT_NEAR(smooth.loss(), (1 - kSmoothing) * own + kSmoothing * mean, 1e-14 * mean);
  EXPECT_EQ(smooth.evaluate(-1), own);
  EXPECT_EQ(plain.loss(), own);
}

TEST(GptGradient, ReluRopeNoBias) {
  GptConfig c = small_gpt();
  c.activation = ops::Activation::relu;
  c.position = Position::rope;
  c.bias = false;
  check_gradients(c);
}

TEST(GptGradient, FeedForwardInTiles) {
  GptConfig c = small_gpt();
  for (const int tiles : {2, 3}) {
    c.tile = tiles;
    for (const ops::Activation activation :
         {ops::Activation::gelu, ops::Activation::gelu_tanh, ops::Activation::swiglu}) {
      c.activation = activation;
      c.dropout = activation == ops::Activation::gelu ? 0.25 : 0;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        c.recompute = recompute;
        check_gradients(c);
      }
    }
  }
}

}  // namespace
}  // namespace choir
