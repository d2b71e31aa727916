// Training a part of a model: the numbers are those of a run that trains all of it and puts the
// frozen parameters back after every step; the costs are those of what is trained.
#include "choir/run/freezing.hpp"

#include <algorithm>
#include <cstring>

#include "src/models/fastconformer/data.hpp"
#include "src/models/gpt/token_data.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

using Bytes = std::vector<std::vector<std::byte>>;

EngineOptions gpt(const GptConfig& model, const char* precision, bool reproducible = false) {
  EngineOptions options = engine_options(model, precision, 2, reproducible);
  options.grad_clip = 0;  // the norm is that of trained parameters
  return options;
}

FastConformerConfig conformer() {
  FastConformerConfig c = tiny_conformer();
  c.n_layer = 3, c.dropout = 0.1, c.stochastic_depth = 0.1;
  return c;
}

EngineOptions speech(const char* precision) {
  EngineOptions options = gpt(tiny_gpt(), precision);
  options.model = conformer();
  options.shapes = SyntheticUtterances(options.seed, conformer()).shapes();
  return options;
}

EngineOptions with(EngineOptions options, Freezing freezing) {
  options.freezing = std::move(freezing);
  return options;
}

std::unique_ptr<SyntheticBatches> batches_for(const EngineOptions& o) {
  return o.model.family().synthetic_batches(o.model, o.seed, o.micro_batch_size);
}

/// One rank on the CPU.
class PartRun {
 public:
  explicit PartRun(const EngineOptions& options)
      : batches_(batches_for(options)),
        plan_(plan_step(options, Layout(), 0, 1, false)),
        engine_(options, device_, *rank_.mesh, plan_.arena_bytes) {
    engine_.instance().initialise(options.seed);
  }
  StepResult step() {
    const std::int64_t n = engine_.options().micro_batches, first = step_ * n;
    engine_.step(
        step_++, [&](std::int64_t j) { return batches_->micro_batch(first + j); },
        batches_->targets(first, n), clock_);
    return engine_.finish(clock_);
  }
  /// The bytes of all parameters, copies included, in the order of the model.
  Bytes masters() {
    Bytes all;
    for (const Parameter& p : parameters()) {
      const auto* data = static_cast<const std::byte*>(p.master.data);
      all.emplace_back(data, data + p.master.bytes());
    }
    return all;
  }
  /// Restores the masters of parameters that are frozen in `other`.
  void put_back(const Bytes& masters, PartRun& other) {
    for (std::size_t i = 0; i < masters.size(); ++i)
      if (!other.parameters()[i].trainable)
        std::memcpy(parameters()[i].master.data, masters[i].data(), masters[i].size());
    engine_.instance().publish();
  }
  std::deque<Parameter>& parameters() { return engine_.instance().parameters().parameters(); }
  Engine& engine() { return engine_; }
  const StepPlan& plan() const { return plan_; }

 private:
  CpuDevice device_;
  SingleRank rank_;
  std::unique_ptr<SyntheticBatches> batches_;
  StepPlan plan_;
  Engine engine_;
  PhaseClock clock_;
  std::int64_t step_ = 0;
};

void expect_as_if_ignored(const EngineOptions& options, const Freezing& freezing) {
  SCOPED_TRACE(freezing.freeze.front());
  PartRun whole(options), frozen(with(options, freezing));
  const Bytes begin = whole.masters();
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(whole.step().loss, frozen.step().loss) << "step " << step;
    whole.put_back(begin, frozen);
  }
  const Bytes expected = whole.masters(), end = frozen.masters();
  int changed = 0, kept = 0;
  for (std::size_t i = 0; i < end.size(); ++i) {
    const Parameter& p = frozen.parameters()[i];
    EXPECT_EQ(end[i], expected[i]) << p.name;
    if (p.trainable) {
      changed += end[i] != begin[i];
    } else {
      ++kept;
      EXPECT_EQ(end[i], begin[i]) << p.name;
    }
  }
  EXPECT_GT(changed, 0);
  EXPECT_GT(kept, 0);
}

GptConfig three_dropped_layers(GptConfig model) {
  model.n_layer = 3;
  model.dropout = 0.1;
  return model;
}

GptConfig untied(GptConfig model) {
  model.tied = false;
  return model;
}

const std::vector<Freezing> kOfGpt{
    {{"embedding.*"}, {}},                                  // with a tied head
    {{"embedding.*", "blocks.0.*", "blocks.1.*"}, {}},      // the lower part
    {{"blocks.1.*"}, {}},                                   // layers that gradients pass through
    {{"*.weight"}, {}},                                     // all except the biases
    {{"*norm*", "*.bias", "embedding.positions.*"}, {}},    // the small ones
    {{"*"}, {"blocks.1.attention.qkv.*"}},                  // a part in the middle
    {{"*"}, {"embedding.positions.weight", "*.0.*norm*"}},  // beside a frozen table
};

TEST(Freezing, GptAsIfItsGradientsWereIgnored) {
  for (const Freezing& freezing : kOfGpt)
    for (const char* precision : {"fp64", "bf16-mixed"}) {
      expect_as_if_ignored(gpt(three_dropped_layers(tiny_gpt()), precision), freezing);
      expect_as_if_ignored(gpt(untied(three_dropped_layers(tiny_gpt())), precision), freezing);
    }
}

TEST(Freezing, InEveryPrecisionAndMode) {
  const Freezing lower{{"embedding.*", "blocks.0.*", "*.feed_forward.output.weight"}, {}};
  for (const char* precision : {"fp32", "bf16-true"})
    expect_as_if_ignored(gpt(three_dropped_layers(tiny_gpt()), precision), lower);
  expect_as_if_ignored(gpt(three_dropped_layers(tiny_gpt()), "fp32", true),
                       lower);  // a copy of the head
  GptConfig llama = three_dropped_layers(tiny_llama());
  expect_as_if_ignored(gpt(llama, "fp32"), {{"embedding.*", "blocks.0.*", "*.qkv.weight"}, {}});
  llama.tile = 4;
  expect_as_if_ignored(gpt(llama, "fp32"), {{"blocks.*.feed_forward.input.weight"}, {}});
  expect_as_if_ignored(gpt(llama, "fp32"), {{"blocks.*.feed_forward.*"}, {}});
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    GptConfig again = three_dropped_layers(tiny_gpt());
    again.recompute = recompute;
    expect_as_if_ignored(gpt(again, "fp32"), lower);
    expect_as_if_ignored(gpt(again, "fp32"), {{"blocks.*.weight"}, {}});
  }
}

const std::vector<Freezing> kOfSpeech{
    {{"encoder.subsampling.*"}, {}},
    {{"encoder.subsampling.*", "encoder.blocks.0.*"}, {}},
    {{"encoder.*"}, {}},
    {{"encoder.blocks.1.*", "head.bias"}, {}},
    {{"*.weight"}, {}},
    {{"*.bias", "*_bias", "*norm*"}, {}},
    {{"*position*", "*depthwise*", "*.conv.*"}, {}},
    {{"encoder.*"}, {"encoder.blocks.1.convolution.*"}},
};

TEST(Freezing, SpeechAsIfItsGradientsWereIgnored) {
  for (const Freezing& freezing : kOfSpeech)
    for (const char* precision : {"fp64", "bf16-mixed"})
      expect_as_if_ignored(speech(precision), freezing);
}

TEST(Freezing, TheNormIsOfWhatIsTrained) {
  for (const Freezing& freezing : kOfGpt) {
    PartRun run(with(gpt(three_dropped_layers(tiny_gpt()), "fp64"), freezing));
    const double norm = run.step().grad_norm;
    double squares = 0;
    for (const Parameter& p : run.parameters()) {
      EXPECT_EQ(p.gradient.empty(), !p.trainable) << p.name;
      for (std::int64_t i = 0; p.trainable && i < p.count(); ++i)
        squares += p.gradient.as<double>()[i] * p.gradient.as<double>()[i];
    }
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-13 * norm) << freezing.freeze.front();
  }
}

double bytes_of(const StepPlan& plan, const std::string& name) {
  double bytes = 0;
  for (const auto& entry : plan.memory.entries)
    if (entry.name == name) bytes += static_cast<double>(entry.bytes);
  return bytes;
}

StepPlan planned(const EngineOptions& options) {
  return plan_step(options, Layout(), 0, 1, false);
}

TEST(Freezing, GradientsAndMomentsAreOfWhatIsTrained) {
  const EngineOptions options = gpt(tiny_gpt(), "fp32");
  const StepPlan whole = planned(options), part = planned(with(options, {{"blocks.1.*"}, {}}));
  // Weights 8 C^2 with F = 2 C: qkv 3, output 1, feed-forward 2 + 2. Tensors begin at multiples of
  // 64 = 2 C: biases of 3 C take 4 C; those of C, and the norms, take 2 C.
  constexpr double kC = 32, kElements = 8 * kC * kC + (4 + 2 + 2 + 2) * kC + 4 * 2 * kC;
  EXPECT_EQ(bytes_of(whole, "gradients") - bytes_of(part, "gradients"), 4 * kElements);
  EXPECT_EQ(bytes_of(whole, "optimizer moments") - bytes_of(part, "optimizer moments"),
            8 * kElements);
  EXPECT_EQ(bytes_of(whole, "parameters, master"), bytes_of(part, "parameters, master"));
  // Nothing is kept for layers that backward does not reach.
  const StepPlan upper = planned(with(options, {{"embedding.*", "blocks.0.*"}, {}}));
  EXPECT_LT(bytes_of(upper, "activations"), 0.8 * bytes_of(whole, "activations"));
}

// Computation uses a copy of the master, and no update changes that of a frozen parameter: without
// the master nothing else changes, and no fp32 values are kept.
TEST(Freezing, WithoutMastersOfWhatIsFrozenTheBitsAreTheSame) {
  for (const Freezing& freezing : kOfGpt) {
    SCOPED_TRACE(freezing.freeze.front());
    const EngineOptions wide = with(gpt(three_dropped_layers(tiny_gpt()), "bf16-mixed"), freezing);
    EngineOptions options = wide;
    options.precision = with_narrow_frozen(wide.precision);
    PartRun whole(wide), narrow(options);
    for (int step = 0; step < 4; ++step) {
      const StepResult one = whole.step(), other = narrow.step();
      EXPECT_EQ(one.loss, other.loss) << "step " << step;
      EXPECT_EQ(one.grad_norm, other.grad_norm) << "step " << step;
    }
    const Bytes masters = whole.masters(), kept = narrow.masters();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const Parameter& p = narrow.parameters()[i];
      EXPECT_EQ(p.master.dtype, p.trainable ? DType::f32 : DType::bf16) << p.name;
      if (p.trainable) {
        EXPECT_EQ(kept[i], masters[i]) << p.name;
        continue;
      }
      EXPECT_EQ(p.master.data, p.value.data) << p.name;
      const auto* from = whole.parameters()[i].master.as<float>();
      for (std::int64_t k = 0; k < p.count(); ++k)
        ASSERT_EQ(p.master.as<bf16>()[k].bits, bf16(from[k]).bits) << p.name << " " << k;
    }
    const ParameterSet& set = narrow.engine().instance().parameters();
    const auto frozen = static_cast<double>(set.flat_size() - set.trained_size());
    EXPECT_EQ(bytes_of(whole.plan(), "parameters, master") -
                  bytes_of(narrow.plan(), "parameters, master"),
              4 * frozen);
    EXPECT_EQ(bytes_of(whole.plan(), "parameters, compute copy"),
              bytes_of(narrow.plan(), "parameters, compute copy"));
  }
}

/// FLOPs of a micro-batch; the FLOPs of the step itself are in both.
double flops(EngineOptions options) {
  options.micro_batches = 2;
  const double two = planned(options).flops;
  options.micro_batches = 4;
  return (planned(options).flops - two) / 2;
}

TEST(Freezing, NoProductsForWhatIsFrozen) {
  const EngineOptions options = gpt(tiny_llama(), "fp32");
  const double whole = flops(options);
  const auto rows = static_cast<double>(options.micro_batch_size * tiny_llama().block_size);
  constexpr double kFeedForward = 3 * 32 * 64;
  EXPECT_EQ(whole - flops(with(options, {{"blocks.1.feed_forward.*"}, {}})),
            2 * rows * kFeedForward);
  // Below the lowest trained layer there are no products for inputs or for weights.
  constexpr double kBlock = kFeedForward + 32 * (32 + 2 * 16) + 32 * 32;
  EXPECT_GE(whole - flops(with(options, {{"embedding.*", "blocks.0.*"}, {}})), 4 * rows * kBlock);
}

std::string complaint(const ModelConfig& model, const Freezing& freezing) {
  ParameterSet parameters;
  const auto built = model.family().make(model, parameters, {});
  try {
    freeze_parameters(parameters, freezing, model);
  } catch (const DeckError& error) {
    return error.what();
  }
  return {};
}

TEST(Freezing, WhatMeansNothingIsRefused) {
  const ModelConfig tied = tiny_gpt(), two = untied(tiny_gpt());
  EXPECT_EQ(complaint(tied, {{"block.*"}, {}}), "train.freeze: 'block.*' matches no parameter");
  EXPECT_EQ(complaint(tied, {{"blocks.*"}, {"blocks.2.*"}}),
            "train.unfreeze: 'blocks.2.*' matches no parameter");
  EXPECT_EQ(complaint(tied, {{"blocks.0.*"}, {"blocks.1.*"}}),
            "train.unfreeze: 'blocks.1.*' matches no parameter that train.freeze freezes");
  EXPECT_EQ(complaint(tied, {{"*"}, {}}),
            "train.freeze: every parameter is frozen, nothing is left to train");
  EXPECT_NE(complaint(tied, {{"head.*"}, {}}).find("one of two tied weights"), std::string::npos);
  EXPECT_EQ(complaint(two, {{"head.*"}, {}}), "");
  EXPECT_EQ(complaint(two, {{"*"}, {"head.*"}}), "");
  EXPECT_EQ(complaint(tied, {{}, {}}), "");
}

TEST(Freezing, FrozenParametersHaveBucketsBehindTheOthers) {
  const ModelConfig model = three_dropped_layers(tiny_gpt());
  ParameterSet whole, part;
  const auto a = model.family().make(model, whole, {}), b = model.family().make(model, part, {});
  freeze_parameters(part, {{"blocks.0.*", "blocks.1.*.bias", "final_norm.weight"}, {}}, model);
  whole.place(3), part.place(3);
  std::int64_t end = 0;
  for (const bool trained : {true, false}) {
    for (const Bucket& bucket : part.buckets()) {
      if (bucket.trainable != trained) continue;
      EXPECT_EQ(bucket.offset + bucket.size <= part.trained_size(), trained) << bucket.name;
      EXPECT_EQ(bucket.size % (3 * ParameterSet::kSliceAlignment), 0);
      end += bucket.size;
      for (const Parameter* p : bucket.parameters) EXPECT_EQ(p->trainable, trained) << p->name;
    }
    EXPECT_EQ(end, trained ? part.trained_size() : part.flat_size());
  }
  // The model identifies its buckets by number, random numbers their elements by position.
  for (std::size_t i = 0; i < whole.buckets().size(); ++i)
    EXPECT_EQ(whole.buckets()[i].name, part.buckets()[i].name);
  EXPECT_EQ(part.buckets().size(), whole.buckets().size() + 2);
  for (std::size_t i = 0; i < whole.parameters().size(); ++i)
    EXPECT_EQ(whole.parameters()[i].position, part.parameters()[i].position);
  EXPECT_EQ(part.buckets()[2].name, "blocks.0");
  EXPECT_FALSE(part.buckets()[2].trainable);
  EXPECT_EQ(part.buckets()[2].frozen, -1);
  const Bucket& beside = part.buckets()[static_cast<std::size_t>(part.buckets()[3].frozen)];
  EXPECT_EQ(beside.name, "blocks.1 (frozen)");
  EXPECT_EQ(whole.model_buckets().size(), part.model_buckets().size());
  EXPECT_EQ(a->describe(), b->describe());
}

}  // namespace
}  // namespace choir::test
