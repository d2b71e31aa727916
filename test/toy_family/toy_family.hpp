#pragma once
// A family of models that choir does not have. This file is everything that a family needs, and it
// includes public headers only, so that it can also be built from an installed choir. The model
// guesses each next token from the one before it alone: embedding, feed-forward layers, head. Its
// tokens follow a rule with noise, so there is something to learn. The outputs of the second layer
// can have a loss of their own, and layers can be of two kinds in turn.
#include <algorithm>

#include "choir/app/run.hpp"
#include "choir/core/philox.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/blocks.hpp"
#include "choir/models/family.hpp"
#include "choir/models/logits.hpp"
#include "choir/nn/layers/feed_forward.hpp"
#include "choir/nn/layers/linear.hpp"
#include "choir/nn/layers/token_embedding.hpp"
#include "choir/run/training_data.hpp"

namespace toy {
using namespace choir;

inline constexpr std::int64_t kSizedLayer = 1;

/// The properties in which layers of one model differ.
struct LayerKind {
  bool gated = false;       ///< SwiGLU with three matrices in place of GELU with two
  std::int64_t hidden = 0;  ///< width between the matrices
  bool sized = false;       ///< its outputs have a loss

  /// FLOPs of the forward of a token.
  double flops(std::int64_t width) const {
    return 2 * static_cast<double>((gated ? 3 : 2) * width * hidden);
  }
};

struct ToyConfig {
  std::int64_t n_layer = 2, n_embd = 32, vocab_size = 29, length = 16;
  std::int64_t gated_interval = 0;  ///< layers n - 1, 2 n - 1, ... are gated; 0: none
  double size_weight = 0;  ///< of the loss that keeps the outputs of the second layer small
  Recompute recompute = Recompute::none;

  LayerKind kind_of(std::int64_t layer) const {
    const bool gated = gated_interval > 0 && (layer + 1) % gated_interval == 0;
    return {.gated = gated,
            .hidden = (gated ? 3 : 2) * n_embd,
            .sized = size_weight > 0 && layer == kSizedLayer};
  }
};
const ModelFamily& family_of(const ToyConfig&);

// --- an auxiliary loss: half the mean square of a layer's outputs at the tokens with a target. It
// is computed on the CPU alone.

class SizeLoss {
 public:
  static constexpr std::size_t kTerm = 1;  ///< after the loss of the head

  /// Adds the losses of this rank's rows, and saves the rows for backward.
  static void forward(Pass& pass, const Tensor& rows, const TensorView& next) {
    const TensorView mine = targets_of_share(pass, next);
    const Tensor losses = pass.allocate_statistic({pass.share_rows()}, "sizes");
    each(pass, rows, mine, [&](auto* row, std::int64_t r, std::int64_t width, bool counts) {
      double sum = 0;
      for (std::int64_t c = 0; c < width && counts; ++c) sum += square(row[c]);
      write(losses, r, sum / (2 * static_cast<double>(width)));
    });
    pass.add_loss(kTerm, losses.slice(0, mine.count()), {.unmasked = mine}, LossRows::shared);
    pass.save(rows);
  }

  /// Adds the gradient to that of the rows.
  static void backward(Pass& pass, const Tensor& d_rows, const TensorView& next) {
    const Tensor rows = pass.pop();
    const LossFactor of = pass.loss_factor(kTerm);
    const bool computes = pass.stream().kind() == DeviceKind::cpu;
    const double factor = of.scale * (computes && of.on_device ? *of.on_device : 1);
    each(pass, rows, targets_of_share(pass, next),
         [&](auto* row, std::int64_t r, std::int64_t width, bool counts) {
           auto* const d_row = static_cast<decltype(row)>(d_rows.data) + r * width;
           for (std::int64_t c = 0; c < width && counts; ++c)
             set(d_row[c], get(d_row[c]) + factor / static_cast<double>(width) * get(row[c]));
         });
  }

 private:
  /// The targets of the rows that this rank of the tensor axis has; padding comes last and has
  /// none.
  static TensorView targets_of_share(const Pass& pass, const TensorView& next) {
    const std::int64_t rows = pass.sequence().rows();
    const std::int64_t first = std::min(pass.first_share_row(), rows);
    return next.slice(first, std::min(pass.share_rows(), rows - first));
  }
  static double get(double x) { return x; }
  static double get(float x) { return x; }
  template <class Half>
  static double get(Half x) {
    return static_cast<double>(static_cast<float>(x));
  }
  static void set(double& x, double value) { x = value; }
  template <class Real>
  static void set(Real& x, double value) {
    x = static_cast<Real>(static_cast<float>(value));
  }
  template <class Real>
  static double square(Real x) {
    return get(x) * get(x);
  }
  static void write(const TensorView& to, std::int64_t at, double value) {
    if (to.dtype == DType::f64)
      to.as<double>()[at] = value;
    else
      to.as<float>()[at] = static_cast<float>(value);
  }
  /// Calls work(row, its number, its width, true if it has a target) for the rows of the share.
  template <class Work>
  static void each(const Pass& pass, const Tensor& rows, const TensorView& mine, const Work& work) {
    const DeviceKind kind = pass.stream().kind();
    CHOIR_CHECK(kind != DeviceKind::cuda, "the loss of sizes has no CUDA kernel");
    if (kind != DeviceKind::cpu) return;
    const std::int64_t width = rows.shape.back();
    const auto* const targets = mine.as<std::int32_t>();
    const auto run = [&](auto* first) {
      for (std::int64_t r = 0; r < mine.count(); ++r)
        work(first + r * width, r, width, targets[r] >= 0);
    };
    if (rows.dtype == DType::f64) run(rows.as<double>());
    if (rows.dtype == DType::f32) run(rows.as<float>());
    if (rows.dtype == DType::bf16) run(rows.as<bf16>());
    if (rows.dtype == DType::f16) run(rows.as<f16>());
  }
};

// --- the model

/// A feed-forward layer, recomputed from its input if asked for.
class ToyLayer {
 public:
  ToyLayer(ParameterSet& parameters, const std::string& name, const ToyConfig& c,
           const LayerKind& kind)
      : inner_(FeedForward::create(
            parameters, name,
            {.width = c.n_embd,
             .hidden = kind.hidden,
             .activation = kind.gated ? ops::Activation::swiglu : ops::Activation::gelu,
             .input_init_std = 0.2,
             .output_init_std = 0.2})),
        sized_(kind.sized),
        again_(c.recompute == Recompute::full) {}

  Tensor forward(Pass& pass, const Tensor& x, const ModelBatch& batch) {
    if (again_) pass.save(x);
    const Pass::Unsaved input_alone(pass, again_);
    return run(pass, x, batch);
  }
  Tensor backward(Pass& pass, const Tensor& d_y, const ModelBatch& batch) {
    if (again_) {
      const Tensor x = pass.pop();
      run(pass, x, batch);
    }
    if (sized_) SizeLoss::backward(pass, d_y, batch["next"]);
    return inner_->backward(pass, d_y);
  }

 private:
  Tensor run(Pass& pass, const Tensor& x, const ModelBatch& batch) {
    Tensor y = inner_->forward(pass, x);
    if (sized_) SizeLoss::forward(pass, y, batch["next"]);
    return y;
  }

  std::unique_ptr<FeedForward> inner_;
  bool sized_, again_;
};

class ToyModel final : public Model {
 public:
  ToyModel(const ToyConfig& c, ParameterSet& parameters, const ModelCut& cut)
      : Model(parameters, cut, c.n_layer), config_(c) {
    trained_.begin_unit(parameters);
    embedding_ = std::make_unique<TokenEmbedding>(
        parameters, "embedding", pieces_.has_input(),
        TokenEmbedding::Options{.vocabulary = c.vocab_size, .width = c.n_embd, .init_std = 0.5});
    layers_.add(parameters, pieces_, trained_, 1, "layers", c.n_layer,
                [&](const std::string& name, std::int64_t layer) {
                  return std::make_unique<ToyLayer>(parameters, name, c, c.kind_of(layer));
                });
    trained_.begin_unit(parameters);
    parameters.begin_bucket("head", pieces_.has_head());
    const Linear::Options divided{.weight_shard = vocabulary_shard(),
                                  .bias_shard = vocabulary_shard()};
    head_ = std::make_unique<Linear>(parameters, "head", c.n_embd, c.vocab_size, divided);
  }

  Shape boundary_shape(const Pass& pass, int /*unit*/) const override {
    return {pass.share_rows(), config_.n_embd};
  }

  Tensor forward(Pass& pass, int index, Tensor x, const ModelBatch& batch) override {
    const ModelPieces::Piece& here = begin_forward(pass, index, x);
    if (here.input) x = embedding_->forward(pass, batch["here"]);
    layers_.forward(pass, here, trained_,
                    [&](ToyLayer& layer) { x = layer.forward(pass, x, batch); });
    if (!here.head) return x;
    const Tensor logits =
        forward_with(pass, head_->bucket(), [&] { return head_->forward(pass, x); });
    return token_losses(pass, logits, batch,
                        {.targets = batch["next"], .vocabulary = config_.vocab_size});
  }

  Tensor backward(Pass& pass, int index, Tensor d_x, const ModelBatch& batch) override {
    const ModelPieces::Piece& here = begin_backward(pass, index, d_x);
    if (here.head)
      d_x = backward_with(pass, head_->bucket(), [&] { return head_->backward(pass, pass.pop()); });
    layers_.backward(pass, here, trained_,
                     [&](ToyLayer& layer) { d_x = layer.backward(pass, d_x, batch); });
    if (!here.input) return d_x;
    embedding_->backward(pass, embedding_->rows_backward(pass, d_x), batch["here"]);
    return {};
  }

  std::string describe() const override { return parameter_table(*parameters_, {"layers"}, 24); }
  double flops(const BatchShape& shape) const override {
    return 6.0 * static_cast<double>(parameters_->count() * shape.samples * shape.tokens);
  }

 private:
  ToyConfig config_;
  std::unique_ptr<TokenEmbedding> embedding_;
  Blocks<ToyLayer> layers_;
  std::unique_ptr<Linear> head_;
};

// --- its data: sequences by a rule, as functions of their global index

class ToyBatches final : public SyntheticBatches {
 public:
  ToyBatches(const ModelConfig& config, std::uint64_t seed, const BatchShape& shape)
      : key_(philox_key(seed, "toy tokens")),
        vocabulary_(config.vocab_size()),
        shape_(shape),
        host_(config, shape) {}
  ModelBatch micro_batch(std::int64_t index) override {
    auto* here = host_.batch["here"].as<std::int32_t>();
    auto* next = host_.batch["next"].as<std::int32_t>();
    const std::int64_t count = shape_.samples * shape_.tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto word = philox_at(key_, static_cast<std::uint64_t>(index * count + i));
      const auto drawn = [&](int of) { return static_cast<std::int64_t>(word[of]) % vocabulary_; };
      here[i] = static_cast<std::int32_t>(drawn(0));
      const bool noise = word[1] % 8 == 0;
      next[i] = static_cast<std::int32_t>(noise ? drawn(2) : (3 * drawn(0) + 1) % vocabulary_);
    }
    host_.batch.first_sample = index * shape_.samples;
    return host_.batch;
  }
  BatchShape shape(std::int64_t) const override { return shape_; }
  ByTerm targets(std::int64_t, std::int64_t count) const override {
    return static_cast<double>(count * shape_.samples * shape_.tokens);
  }

 private:
  PhiloxKey key_;
  std::int64_t vocabulary_;
  BatchShape shape_;
  HostBatch host_;
};

// --- the family

inline const ToyConfig& toy_of(const Deck& deck) {
  return deck.families.of<ToyConfig>();
}

class ToyFamily final : public FamilyOf<ToyConfig, ToyConfig, ToyModel> {
 public:
  std::string_view name() const override { return "toy"; }
  const KeySet& keys() const override {
    static const KeyTable<ToyConfig> kTable = [] {
      KeyTable<ToyConfig> table;
      auto keys = table.top();
      keys.add("model.n_layer", &ToyConfig::n_layer, "", "Layers.").at_least(1);
      keys.add("model.n_embd", &ToyConfig::n_embd, "", "Width.").at_least(1);
      keys.add("model.vocab_size", &ToyConfig::vocab_size, "tokens", "Tokens there are.")
          .at_least(2);
      keys.add("model.length", &ToyConfig::length, "tokens", "Length of a sequence.").at_least(1);
      keys.add("model.gated_interval", &ToyConfig::gated_interval, "layers",
               "Every n-th layer is gated and wider than the others; 0: none.")
          .at_least(0);
      keys.add("model.size_weight", &ToyConfig::size_weight, "",
               "Weight of the loss of the sizes of the second layer's outputs; 0: none.")
          .at_least(0);
      return table;
    }();
    return kTable;
  }
  std::vector<KeyProblem> check(const Deck& deck) const override {
    const std::int64_t width = toy_of(deck).n_embd, ranks = deck.parallel.tensor;
    if (toy_of(deck).size_weight > 0 && toy_of(deck).n_layer <= kSizedLayer)
      return {{{"model.size_weight", "model.n_layer"},
               "model.size_weight needs a second layer, so model.n_layer >= 2"}};
    if (width % ranks == 0) return {};
    return {{{"model.n_embd", "parallel.tensor"},
             fmt::format("model.n_embd = {} cannot be divided among {} ranks", width, ranks)}};
  }
  ModelConfig model(const Deck& deck) const override { return toy_of(deck); }
  std::int64_t& vocab_size(Deck& deck) const override {
    return deck.families.of<ToyConfig>().vocab_size;
  }
  bool fixed_shape() const override { return true; }
  std::vector<LossTerm> loss_terms(const ModelConfig& config) const override {
    const double weight = config.as<ToyConfig>().size_weight;
    if (weight == 0) return ModelFamily::loss_terms(config);
    return {{"token_loss", 1}, {"size_loss", weight, 0}};
  }
  /// The parameters do not show the length of sequences.
  void check_start(const Deck& deck, const std::vector<StartingPoint>& points,
                   const std::string&) const override {
    for (const StartingPoint& point : points)
      if (const Deck other = parse_deck(deck.families.table(), point.deck, point.checkpoint, {});
          toy_of(other).length != toy_of(deck).length)
        throw DeckError(fmt::format("{} learnt from sequences of {}, not {}", point.checkpoint,
                                    toy_of(other).length, toy_of(deck).length),
                        "choose another run");
  }

  UnitCosts unit_costs(const ModelConfig& config) const override {
    const auto& c = config.as<ToyConfig>();
    const auto width = static_cast<double>(c.n_embd);
    return costs_by_layer(
        width, c.n_layer, [&](std::int64_t layer) { return c.kind_of(layer).flops(c.n_embd); },
        2 * width * static_cast<double>(c.vocab_size));
  }
  std::string describe(const ModelConfig& config) const override {
    return fmt::format("{} layers of {}", config.n_layer(), config.n_embd());
  }
  BatchShape shape(const ModelConfig& config, std::int64_t samples) const override {
    return {.samples = samples, .tokens = config.as<ToyConfig>().length};
  }
  ModelBatch fields(const ModelConfig&, const BatchShape& shape) const override {
    const TensorView tokens{nullptr, DType::i32, {shape.samples * shape.tokens}};
    ModelBatch batch;
    batch.samples = shape.samples;
    batch.tokens = shape.tokens;
    batch.add({.name = "here", .view = tokens, .shared = Shared::positions});
    batch.add({.name = "next", .view = tokens, .shared = Shared::positions, .padding = -1});
    return batch;
  }
  std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch, Mesh&,
                                          Logger&) const override {
    const auto seed = static_cast<std::uint64_t>(deck.run.seed);
    return std::make_unique<SyntheticData>(synthetic_batches(toy_of(deck), seed, batch.micro),
                                           toy_of(deck), batch, "tokens by a rule", true);
  }
  std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config, std::uint64_t seed,
                                                      std::int64_t samples) const override {
    return std::make_unique<ToyBatches>(config, seed, shape(config, samples));
  }
};

inline const ModelFamily& family_of(const ToyConfig&) {
  static const ToyFamily kFamily;
  return kFamily;
}

}  // namespace toy
