#pragma once
// A model whose loss has two terms, each with its own targets, whose positions and numbers differ
// from micro-batch to micro-batch: an embedding, and a head for each term. A second implementation
// in fp64 computes the same loss at once.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/run/training_data.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/sums/sums.hpp"
#include "src/device/cpu_device.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/step_planner.hpp"

namespace choir::test {

struct TwoTerms {
  std::int64_t n_layer = 2, n_embd = 8, vocab_size = 11;
  Recompute recompute = Recompute::none;
  std::int64_t length = 12;
  bool sounds = true;  ///< true if there are targets of the second term
};
const ModelFamily& family_of(const TwoTerms&);
inline const std::vector<LossTerm> kTwoTerms{{"text_loss", 1}, {"sound_loss", 0.3}};

class TwoTermsModel final : public Model {
 public:
  TwoTermsModel(const TwoTerms& c, ParameterSet& parameters, const ModelCut& cut)
      : Model(parameters, cut, c.n_layer), config_(c) {
    trained_.begin_unit(parameters);
    parameters.begin_bucket("embedding", pieces_.has_input());
    table_ = &parameters.add(
        {.name = "embedding.weight", .shape = {c.vocab_size, c.n_embd}, .init = Init::normal(0.5)});
    // The blocks do not change the stream; they exist to be distributed over stages.
    for (std::int64_t i = 0; i < c.n_layer; ++i) trained_.begin_unit(parameters);
    trained_.begin_unit(parameters);
    bucket_ = parameters.begin_bucket("heads", pieces_.has_head());
    for (const char* name : {"text", "sound"})
      heads_.push_back(std::make_unique<Linear>(parameters, name, c.n_embd, c.vocab_size,
                                                Linear::Options{.init_std = 0.5}));
  }

  Shape boundary_shape(const Pass& pass, int /*unit*/) const override {
    return {pass.sequence().rows(), config_.n_embd};
  }

  Tensor forward(Pass& pass, int index, Tensor x, const ModelBatch& batch) override {
    const ModelPieces::Piece& here = begin_forward(pass, index, x);
    const std::int64_t rows = pass.sequence().rows();
    if (here.input) {
      pass.acquire(table_->bucket);
      x = pass.allocate({rows, config_.n_embd}, "embedding");
      ops::embedding_forward(pass.stream(), {.ids = batch["here"],
                                             .table = table_->value,
                                             .tokens = pass.sequence().tokens,
                                             .out = x,
                                             .vocabulary = config_.vocab_size});
      pass.release(table_->bucket);
    }
    if (!here.head) return x;
    pass.acquire(bucket_);
    Tensor losses = pass.allocate_statistic({2, rows}, "losses");
    for (std::size_t term = 0; term < 2; ++term) {
      const Tensor logits = heads_[term]->forward(pass, x);
      ops::cross_entropy(pass.stream(), {.logits = logits,
                                         .targets = batch[term == 0 ? "text" : "sound"],
                                         .losses = losses_of_term(losses, term, 2),
                                         .vocabulary = config_.vocab_size,
                                         .scale = batch.scale,
                                         .device_scale = batch.device_scale(term),
                                         .write_gradient = pass.training()});
      pass.add_loss(term, losses_of_term(losses, term, 2),
                    {.unmasked = batch[term == 0 ? "text" : "sound"]});
      pass.save(logits);  // now their gradient
    }
    pass.release(bucket_);
    return losses;
  }

  Tensor backward(Pass& pass, int index, Tensor d_x, const ModelBatch& batch) override {
    const ModelPieces::Piece& here = begin_backward(pass, index, d_x);
    if (here.head) {
      pass.acquire(bucket_);
      pass.begin_gradients(bucket_);
      d_x = heads_[1]->backward(pass, pass.pop());
      ops::add(pass.stream(), d_x, heads_[0]->backward(pass, pass.pop()), d_x);
      pass.gradients_ready(bucket_);
      pass.release(bucket_);
    }
    if (!here.input) return d_x;
    const std::int64_t rows = pass.sequence().rows();
    pass.begin_gradients(table_->bucket);
    const Tensor workspace = pass.scratch(
        ops::embedding_workspace(pass.stream(), rows, config_.vocab_size, config_.n_embd),
        "embedding gradient");
    ops::embedding_backward(pass.stream(), {.ids = batch["here"],
                                            .d_out = d_x,
                                            .d_table = table_->gradient,
                                            .tokens = pass.sequence().tokens,
                                            .vocabulary = config_.vocab_size,
                                            .workspace = workspace});
    pass.gradients_ready(table_->bucket);
    return {};
  }

  std::string describe() const override { return "two terms"; }
  double flops(const BatchShape&) const override { return 1; }

 private:
  TwoTerms config_;
  Parameter* table_ = nullptr;
  std::vector<std::unique_ptr<Linear>> heads_;
  int bucket_ = -1;
};

/// A position has a target of the first term, of the second, of both or of neither. The micro-batch
/// decides which of the terms is rare, so that no two ranks have equally many targets.
class TwoTermsBatches final : public SyntheticBatches {
 public:
  static constexpr std::int64_t kRows = 2;
  explicit TwoTermsBatches(const TwoTerms& c)
      : config_(c),
        here_(static_cast<std::size_t>(kRows * c.length)),
        text_(here_),
        sound_(here_) {}

  ModelBatch micro_batch(std::int64_t index) override {
    constexpr std::uint32_t kTexts[] = {14, 2, 7}, kSounds[] = {1, 13, 4};  // of 16 positions
    const auto n = static_cast<std::int64_t>(here_.size());
    for (std::size_t i = 0; i < here_.size(); ++i) {
      const PhiloxBlock word =
          philox_at(philox_key(7, "two terms"), static_cast<std::uint64_t>(index),
                    static_cast<std::uint64_t>(i));
      const auto token = [&](std::uint32_t bits) {
        return static_cast<std::int32_t>(bits % static_cast<std::uint32_t>(config_.vocab_size));
      };
      here_[i] = token(word[0]);
      const bool text = word[1] % 16 < kTexts[index % 3];
      const bool sound = config_.sounds && word[2] % 16 < kSounds[index % 3];
      text_[i] = text ? token(word[1] / 16) : -1;
      sound_[i] = sound ? token(word[2] / 16) : -1;
    }
    const auto view = [&](std::vector<std::int32_t>& field) {
      return TensorView{field.data(), DType::i32, {n}};
    };
    ModelBatch batch = fields(view(here_), view(text_), view(sound_));
    batch.first_sample = index * kRows;
    return batch;
  }
  static ModelBatch fields(const TensorView& here, const TensorView& text,
                           const TensorView& sound) {
    ModelBatch batch;
    batch.samples = kRows;
    batch.tokens = here.count() / kRows;
    batch.add({.name = "here", .view = here, .shared = Shared::positions});
    batch.add({.name = "text", .view = text, .shared = Shared::positions, .padding = -1});
    batch.add({.name = "sound", .view = sound, .shared = Shared::positions, .padding = -1});
    return batch;
  }
  BatchShape shape(std::int64_t) const override {
    return {.samples = kRows, .tokens = config_.length};
  }
  ByTerm targets(std::int64_t first, std::int64_t count) const override {
    TwoTermsBatches own(config_);
    ByTerm sums(2, 0);
    for (std::int64_t index = first; index < first + count; ++index) {
      own.micro_batch(index);
      for (std::size_t i = 0; i < here_.size(); ++i)
        sums[0] += own.text_[i] >= 0, sums[1] += own.sound_[i] >= 0;
    }
    return sums;
  }

 private:
  TwoTerms config_;
  std::vector<std::int32_t> here_, text_, sound_;
};

/// The functions of a family that an engine needs. The family is in no table, and no deck can name
/// it.
class TwoTermsFamily final : public ModelFamily {
 public:
  std::string_view name() const override { return "two terms"; }
  std::unique_ptr<HeldSettings> settings() const override { refuse(); }
  const KeySet& keys() const override { refuse(); }
  std::vector<KeyProblem> check(const Deck&) const override { refuse(); }
  ModelConfig model(const Deck&) const override { refuse(); }
  std::int64_t& vocab_size(Deck&) const override { refuse(); }
  std::unique_ptr<TrainingData> open_data(const Deck&, const BatchSizes&, Mesh&,
                                          Logger&) const override {
    refuse();
  }

  bool fixed_shape() const override { return true; }
  std::vector<LossTerm> loss_terms(const ModelConfig&) const override { return kTwoTerms; }
  std::unique_ptr<Model> make(const ModelConfig& config, ParameterSet& parameters,
                              const ModelCut& cut) const override {
    return std::make_unique<TwoTermsModel>(config.as<TwoTerms>(), parameters, cut);
  }
  UnitCosts unit_costs(const ModelConfig&) const override { return alike(1, 1, 1, 2); }
  std::string describe(const ModelConfig&) const override { return "two terms"; }
  BatchShape shape(const ModelConfig& config, std::int64_t samples) const override {
    return {.samples = samples, .tokens = config.as<TwoTerms>().length};
  }
  ModelBatch fields(const ModelConfig&, const BatchShape& shape) const override {
    const TensorView tokens{nullptr, DType::i32, {shape.samples * shape.tokens}};
    return TwoTermsBatches::fields(tokens, tokens, tokens);
  }
  std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config, std::uint64_t,
                                                      std::int64_t) const override {
    return std::make_unique<TwoTermsBatches>(config.as<TwoTerms>());
  }

 private:
  [[noreturn]] static void refuse() { throw Error(ExitCode::other, "there is no deck of it"); }
};
inline const ModelFamily& family_of(const TwoTerms&) {
  static const TwoTermsFamily kFamily;
  return kFamily;
}

/// Tensors by name.
using Named = std::map<std::string, std::vector<double>>;

/// The largest distance between tensors of the same name, over the names in `a`.
inline double largest_distance(const Named& a, const Named& b) {
  double most = 0;
  for (const auto& [name, values] : a)
    for (std::size_t i = 0; i < values.size(); ++i)
      most = std::fmax(most, std::abs(values[i] - b.at(name).at(i)));
  return most;
}

/// A training run of the model in fp64 on this rank of a mesh.
class TwoTermsRun {
 public:
  /// `micro_batches`: those of one step, of all ranks.
  TwoTermsRun(const TwoTerms& model, Mesh& mesh, std::int64_t micro_batches,
              std::unique_ptr<Device> device = std::make_unique<CpuDevice>())
      : device_(std::move(device)),
        batches_(model),
        options_(options_of(model, micro_batches / mesh.along(Axis::data).size())),
        plan_(plan_step(options_, mesh.layout(), mesh.rank(), mesh.node().size(), false,
                        device_.get())),
        engine_(options_, *device_, mesh, plan_.arena_bytes),
        micro_batches_(micro_batches) {
    engine_.instance().initialise(options_.seed);
  }

  Engine& engine() { return engine_; }
  TwoTermsBatches& batches() { return batches_; }
  ByTerm targets() const { return batches_.targets(0, micro_batches_); }
  /// Targets of the micro-batches that this rank computes.
  ByTerm own_targets() const {
    ByTerm sums(2, 0);
    for (std::int64_t j = 0; j < options_.micro_batches; ++j)
      sums += batches_.targets(engine_.micro_batch_index(0, j), 1);
    return sums;
  }
  /// Computes the first step.
  StepResult step(const ByTerm& targets) {
    engine_.step(
        0, [&](std::int64_t j) { return batches_.micro_batch(engine_.micro_batch_index(0, j)); },
        targets, clock_);
    return engine_.finish(clock_);
  }

  /// The master values of this rank's parameters.
  Named masters() {
    return values([](const Parameter& p) { return p.master; });
  }
  Named gradients() {
    return values([](const Parameter& p) { return p.gradient; });
  }

 private:
  static EngineOptions options_of(const TwoTerms& model, std::int64_t micro_batches) {
    EngineOptions options;
    options.model = model;
    options.precision = precision_of("fp64");
    options.seed = 11;
    options.micro_batch_size = TwoTermsBatches::kRows;
    options.micro_batches = micro_batches;
    options.schedule = {.kind = LrSchedule::Kind::constant, .peak = 1e-2};
    options.lag = 0;
    return options;
  }
  template <class ViewOf>
  Named values(const ViewOf& view_of) {
    Named all;
    for (const Parameter& p : engine_.instance().parameters().parameters()) {
      if (!p.resident()) continue;
      std::vector<double>& to = all[p.name];
      to.resize(static_cast<std::size_t>(p.count()));
      const TensorView view = view_of(p);
      device_->copy_to_host(to.data(), view.data, view.bytes());
    }
    return all;
  }

  std::unique_ptr<Device> device_;
  TwoTermsBatches batches_;
  EngineOptions options_;
  StepPlan plan_;
  Engine engine_;
  std::int64_t micro_batches_;
  PhaseClock clock_;
};

/// The loss and its gradient as one sum over the positions of all micro-batches.
struct CombinedLoss {
  double loss = 0;
  Named gradients;

  CombinedLoss(const TwoTerms& c, const Named& parameters, std::int64_t micro_batches) {
    for (const auto& [name, values] : parameters) gradients[name].resize(values.size());
    TwoTermsBatches batches(c);
    const ByTerm targets = batches.targets(0, micro_batches);
    for (std::int64_t index = 0; index < micro_batches; ++index) {
      const ModelBatch batch = batches.micro_batch(index);
      for (std::int64_t i = 0; i < batch["here"].count(); ++i)
        for (std::size_t term = 0; term < 2; ++term) {
          const std::string head = term == 0 ? "text" : "sound";
          const std::int32_t target = batch[head].as<std::int32_t>()[i];
          if (target < 0) continue;
          add(c, parameters, head, batch["here"].as<std::int32_t>()[i], target,
              kTwoTerms[term].weight / targets[term]);
        }
    }
  }

 private:
  // Adds the terms of one target.
  void add(const TwoTerms& c, const Named& parameters, const std::string& head, std::int32_t token,
           std::int32_t target, double factor) {
    const auto width = static_cast<std::size_t>(c.n_embd);
    const auto words = static_cast<std::size_t>(c.vocab_size);
    const std::size_t row = static_cast<std::size_t>(token) * width;
    const std::vector<double>& table = parameters.at("embedding.weight");
    const std::vector<double>& weight = parameters.at(head + ".weight");
    std::vector<double> logits = parameters.at(head + ".bias");
    double sum = 0;
    for (std::size_t v = 0; v < words; ++v) {
      for (std::size_t k = 0; k < width; ++k) logits[v] += weight[v * width + k] * table[row + k];
      sum += std::exp(logits[v]);
    }
    const auto right = static_cast<std::size_t>(target);
    loss += factor * (std::log(sum) - logits[right]);
    for (std::size_t v = 0; v < words; ++v) {
      const double d = factor * (std::exp(logits[v]) / sum - (v == right ? 1 : 0));
      gradients[head + ".bias"][v] += d;
      for (std::size_t k = 0; k < width; ++k) {
        gradients[head + ".weight"][v * width + k] += d * table[row + k];
        gradients["embedding.weight"][row + k] += d * weight[v * width + k];
      }
    }
  }
};

}  // namespace choir::test
