#pragma once
// A family of models is one room, src/models/<family>, and one line in the table of
// src/models/families.cpp. Everybody else asks a family for its properties through this interface,
// and never which one it is.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/loss_terms.hpp"
#include "choir/models/model.hpp"
#include "choir/models/model_config.hpp"
#include "choir/models/units.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

class BenchBatches;
class EvaluationData;
struct BenchAudio;
struct BatchSizes;
struct Deck;
struct StartingPoint;
namespace ops {
struct BenchShape;
}
class Logger;
class Mesh;
class ModelInstance;
class SyntheticBatches;
class TrainingData;

/// What a deck says to one family: the members that its keys are bound to. Only the family looks
/// inside.
class FamilySettings {
 public:
  virtual ~FamilySettings() = default;
  virtual std::unique_ptr<FamilySettings> clone() const = 0;
  /// The object that the family's keys are bound to.
  virtual void* object() = 0;
};

template <class Settings>
class SettingsOf final : public FamilySettings {
 public:
  std::unique_ptr<FamilySettings> clone() const override {
    return std::make_unique<SettingsOf>(*this);
  }
  void* object() override { return &value; }
  Settings value;
};

/// Two names of one parameter where it is tied: `alias` may or may not exist beside `name`.
struct TiedNames {
  std::string name, alias;
  int unit = 0;  ///< of the model, that has it by `name`
};

/// What its users call the things that a family counts.
struct FamilyWords {
  std::string_view samples = "sequences";
  std::string_view rate = "tokens/s";
  std::string_view input_layer = "embedding";
  /// What `rate` counts is seconds of audio (StepContent::audio_seconds) instead of targets.
  bool audio = false;
  /// What a trained model is for: "`choir talk` holds dialogues with it".
  std::string_view use{};
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  /// The value of model.type.
  virtual std::string_view name() const = 0;
  virtual FamilyWords words() const { return {}; }

  // The deck. All of it is local and pure.

  /// Settings at their defaults (a SettingsOf), and the keys bound to them, of any section
  /// ("model.n_layer", "eval.batches"). Two families may have a key of the same path and type; each
  /// has its own value and default of it.
  virtual std::unique_ptr<FamilySettings> settings() const = 0;
  virtual const KeySet& keys() const = 0;
  /// Fills members that follow from others and marks them as derived.
  virtual void derive(Deck&) const {}
  /// Every complaint about the family's keys, alone and together with the common ones (parallel.*,
  /// data.train ...).
  virtual std::vector<KeyProblem> check(const Deck& deck) const = 0;
  /// The model that the deck describes, with train.recompute.
  virtual ModelConfig model(const Deck& deck) const = 0;
  /// The size of the vocabulary, where 0 stands for that of the data, and its key.
  virtual std::int64_t& vocab_size(Deck& deck) const = 0;
  virtual std::string vocab_size_key() const { return "model.vocab_size"; }

  /// All micro-batches have one shape, so that a step is counted in samples (train.micro_batch_size
  /// and its kin). Otherwise their shapes differ, and a step is counted in micro-batches
  /// (train.micro_batches).
  virtual bool fixed_shape() const = 0;

  // The model. All of it is local; configurations are the family's own.

  /// Describes all parameters, registers those of this rank and makes its pieces of the model.
  virtual std::unique_ptr<Model> make(const ModelConfig& config, ParameterSet& parameters,
                                      const ModelCut& cut) const = 0;
  /// What the loss is a sum of, 1 to ops::kMostLossTerms terms. Speeds count the targets of the
  /// first.
  virtual std::vector<LossTerm> loss_terms(const ModelConfig&) const { return {{"loss", 1}}; }
  /// FLOPs of the forward of one typical micro-batch, for dealing units out to stages.
  virtual UnitCosts unit_costs(const ModelConfig& config) const = 0;
  /// Parameters that have a second name in some layouts.
  virtual std::vector<TiedNames> tied(const ModelConfig&) const { return {}; }
  /// Whether ranks of the context axis can share the positions of a sequence.
  virtual bool shares_positions() const { return true; }
  /// Query heads of the attention in which shared positions meet (parallel.context_mode); 0: there
  /// is none.
  virtual std::int64_t query_heads(const ModelConfig&) const { return 0; }
  /// Every complaint about a model that so many ranks of the tensor axis are to divide.
  virtual std::vector<KeyProblem> check_tensor_size(const ModelConfig&, std::int64_t) const {
    return {};
  }
  /// One line for people: its sizes.
  virtual std::string describe(const ModelConfig& config) const = 0;
  /// What can be asked of a trained model: `choir generate` continues text with it, `choir
  /// transcribe` writes down what it hears.
  virtual bool generates() const { return false; }
  virtual bool transcribes() const { return false; }
  /// `choir generate` answers prompts with clips of audio.
  virtual bool hears() const { return false; }

  /// The shape of micro-batches of so many samples, with fixed_shape().
  virtual BatchShape shape(const ModelConfig& config, std::int64_t samples) const;
  /// The fields of a micro-batch of this shape, without memory.
  virtual ModelBatch fields(const ModelConfig& config, const BatchShape& shape) const = 0;
  /// What zeros do not say of a micro-batch of this shape in which every row is full.
  virtual void fill(const ModelConfig&, const BatchShape&, ModelBatch&) const {}
  /// Makes padding of every row; without fixed_shape().
  virtual void clear(ModelBatch& batch) const;

  // Data and runs.

  /// Collective over the mesh. Opens what the deck names.
  virtual std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch,
                                                  Mesh& mesh, Logger& log) const = 0;
  /// Collective over the mesh. Opens the validation data of the deck. `vocabulary`: that of the
  /// checkpoint (see TrainingData::vocabulary_json), which the data must share; "" for any. By
  /// default the training data validate (src/train/step/training_data.cpp).
  virtual std::unique_ptr<EvaluationData> open_evaluation(const Deck& deck,
                                                          const std::string& vocabulary, Mesh& mesh,
                                                          Logger& log) const;
  /// Local. Micro-batches of random content and raggedness as functions of their global index, by
  /// which `choir verify` compares layouts.
  virtual std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config,
                                                              std::uint64_t seed,
                                                              std::int64_t samples) const = 0;
  /// Collective over the mesh. The batches of `choir bench step`; by default synthetic_batches()
  /// (src/lab/bench/bench_batches.cpp).
  virtual std::unique_ptr<BenchBatches> bench_batches(const Deck& deck, const BatchSizes& batch,
                                                      Mesh& mesh, Logger& log,
                                                      const BenchAudio& audio) const;
  /// Local. Rows and widths of a micro-batch of this shape, for `choir bench ops`, apart from the
  /// count of parameters; by default none (0 rows), and the bench is not offered.
  virtual ops::BenchShape op_shape(const ModelConfig&, const BatchShape&) const;
  /// The size of the vocabulary that a bench takes where neither deck nor data say it; 0: none.
  virtual std::int64_t usual_vocab_size() const { return 0; }
  /// Local. Refuses runs whose parameters the model is to begin with (the map of
  /// checkpoint.init_from) for what names and shapes do not show, as another vocabulary.
  /// `vocabulary`: of the training data, as StartingPoint has that of a run.
  virtual void check_start(const Deck&, const std::vector<StartingPoint>&,
                           const std::string& vocabulary) const {
    (void)vocabulary;
  }

  /// As validation does with each of its batches, in a plan on the null device; by default the
  /// losses (src/train/step/training_data.cpp).
  virtual void evaluate_once(ModelInstance& instance, const ModelBatch& batch) const;
  /// Whether runs of this deck write samples of what the model makes.
  virtual bool writes_samples(const Deck&) const { return false; }
  /// As the largest of such samples does, in a plan on the null device.
  virtual void sample_once(ModelInstance&) const {}
};

/// A family whose keys are bound to `Settings`, and which makes a `Made` of a `Config`.
template <class Settings, class Config, class Made>
class FamilyOf : public ModelFamily {
 public:
  std::unique_ptr<FamilySettings> settings() const final {
    return std::make_unique<SettingsOf<Settings>>();
  }
  std::unique_ptr<Model> make(const ModelConfig& config, ParameterSet& parameters,
                              const ModelCut& cut) const final {
    return std::make_unique<Made>(config.as<Config>(), parameters, cut);
  }
};

/// A micro-batch of a shape in host memory, for those who make their own: plans, probes, tests.
class HostBatch {
 public:
  /// Full rows of zeros: tokens 0, silence, labels 0, all lengths as the shape allows. Views of
  /// memory that lives with this.
  HostBatch(const ModelConfig& config, const BatchShape& shape);
  HostBatch(const HostBatch&) = delete;
  HostBatch& operator=(const HostBatch&) = delete;

  /// Every row becomes padding.
  void clear() { family_->clear(batch); }

  ModelBatch batch;

 private:
  const ModelFamily* family_;
  std::vector<std::byte> memory_;
};

/// The table: every family of this program, in the order of their names in messages.
const std::vector<const ModelFamily*>& model_families();
/// By the value of model.type; Error for a name that is not in the table.
const ModelFamily& model_family(std::string_view name);

}  // namespace choir
