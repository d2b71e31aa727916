#pragma once
// A model family is one room, src/models/<family>, and one line in src/models/families.cpp; or it
// belongs to another program, which passes it to choir::run() (choir/app/run.hpp). All other code
// asks a family for its properties through this interface and never tests which family it is.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

struct StartingPoint {
  std::string pattern;     ///< selects the parameters of the new model that are taken from the run
  std::string prefix;      ///< prefix of their names in that run, "lm." for example; or ""
  std::string checkpoint;  ///< path of the checkpoint
  std::string deck;        ///< resolved deck of that run as JSON
  std::string vocabulary;  ///< TrainingData::vocabulary_json() of that run, or ""
};

class SyntheticBatches {
 public:
  /// Row r of micro-batch i has the id i * kMostRows + r, if rows have ids.
  static constexpr std::int64_t kMostRows = 3;
  virtual ~SyntheticBatches() = default;
  /// The result is valid until the next call.
  virtual ModelBatch micro_batch(std::int64_t index) = 0;
  virtual BatchShape shape(std::int64_t index) const = 0;
  /// Seconds of audio in a micro-batch, without padding.
  virtual double audio_seconds(std::int64_t) const { return 0; }
  /// Targets that are not masked in micro-batches [first, first + count).
  virtual ByTerm targets(std::int64_t first, std::int64_t count) const = 0;
  /// The micro-batch of a rank without work, if a step is counted in micro-batches.
  virtual ModelBatch padding() { return {}; }
  /// See EngineOptions::shapes; empty where the family has a fixed shape.
  virtual std::vector<BatchShape> shapes() const { return {}; }
};

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

/// Two names of one parameter if it is tied: `alias` may or may not exist besides `name`.
struct TiedNames {
  std::string name, alias;
  int unit = 0;  ///< the model's unit that holds it under `name`
};

/// The head of a model that computes its logits in chunks of rows (train.head_chunk).
struct HeadChunk {
  std::int64_t vocabulary = 0;  ///< columns of the logits; 0: the model has no such head
  std::int64_t rows = 0;        ///< rows of which the logits are in memory together; 0: all
  bool automatic = false;       ///< chosen by the program, which may choose fewer rows
};

/// Attention of which backward computes queries, keys, values and outputs again, tile by tile
/// (train.attention_chunk).
struct AttentionTiles {
  std::int64_t positions = 0;  ///< of a tile; 0: everything is kept
  std::int64_t elements = 0;   ///< that are not kept of each position and layer, over all heads
  std::int64_t heads = 0;      ///< each with a statistic that is not kept
};

/// The words in which a family's counts are reported to users.
struct FamilyWords {
  std::string_view samples = "sequences";
  std::string_view rate = "tokens/s";
  std::string_view input_layer = "embedding";
  /// `rate` counts seconds of audio (StepContent::audio_seconds) instead of targets.
  bool audio = false;
  /// The use of a trained model, as a sentence: "`choir talk` holds dialogues with it".
  std::string_view use{};
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  /// The value of model.type.
  virtual std::string_view name() const = 0;
  virtual FamilyWords words() const { return {}; }

  // The deck. All functions are local and pure.

  /// Default settings (a SettingsOf), and the keys bound to them, of any section ("model.n_layer",
  /// "eval.batches"). Two families may have a key of the same path and type; each has its own value
  /// and default of it.
  virtual std::unique_ptr<HeldSettings> settings() const = 0;
  virtual const KeySet& keys() const = 0;
  /// Fills in members that follow from others and marks them as derived.
  virtual void derive(Deck&) const {}
  /// Returns all problems of the family's keys, alone and together with the common ones
  /// (parallel.*, data.train ...).
  virtual std::vector<KeyProblem> check(const Deck& deck) const = 0;
  /// Keys that all runs have but that runs of this family do not read, whatever their values.
  virtual std::vector<std::string_view> unread_keys() const { return {}; }
  /// The model that the deck describes, with train.recompute.
  virtual ModelConfig model(const Deck& deck) const = 0;
  /// The size of the vocabulary, where 0 means that of the data, and the name of its key.
  virtual std::int64_t& vocab_size(Deck& deck) const = 0;
  virtual std::string vocab_size_key() const { return "model.vocab_size"; }

  /// True if all micro-batches have one shape: a step is then counted in samples
  /// (train.micro_batch_size and related keys). Otherwise shapes differ, and a step is counted in
  /// micro-batches (train.micro_batches).
  virtual bool fixed_shape() const = 0;

  // The model. All functions are local; a configuration is read only by its own family.

  /// Describes all parameters, registers those of this rank and creates its pieces of the model.
  virtual std::unique_ptr<Model> make(const ModelConfig& config, ParameterSet& parameters,
                                      const ModelCut& cut) const = 0;
  /// The terms of the loss, 1 to ops::kMostLossTerms. Throughput counts the targets of the first.
  virtual std::vector<LossTerm> loss_terms(const ModelConfig&) const { return {{"loss", 1}}; }
  /// FLOPs of the forward of one typical micro-batch, by which units are assigned to stages.
  virtual UnitCosts unit_costs(const ModelConfig& config) const = 0;
  /// The chunks of the head, if logits have this type. A plan that does not fit can have a smaller
  /// limit of automatic chunks.
  virtual HeadChunk head_chunk(const ModelConfig&, DType /*logits*/) const { return {}; }
  virtual void limit_head_chunk(ModelConfig&, std::int64_t /*rows*/) const {}
  virtual AttentionTiles attention_tiles(const ModelConfig&) const { return {}; }
  /// Parameters that have a second name in some layouts.
  virtual std::vector<TiedNames> tied(const ModelConfig&) const { return {}; }
  /// True if ranks of the context axis can divide the positions of a sequence.
  virtual bool shares_positions() const { return true; }
  /// Query heads of the attention that works across divided positions (parallel.context_mode); 0 if
  /// the model has no such attention.
  virtual std::int64_t query_heads(const ModelConfig&) const { return 0; }
  /// Returns the problems of dividing the model among this number of ranks of the tensor axis.
  virtual std::vector<KeyProblem> check_tensor_size(const ModelConfig&, std::int64_t) const {
    return {};
  }
  /// One line for users: the sizes of the model.
  virtual std::string describe(const ModelConfig& config) const = 0;
  /// The subcommands that accept a trained model: `choir generate` continues text, `choir
  /// transcribe` transcribes speech.
  virtual bool generates() const { return false; }
  virtual bool transcribes() const { return false; }
  /// True if `choir generate` answers prompts that contain clips of audio.
  virtual bool hears() const { return false; }

  /// The shape of micro-batches of this number of samples. Only with fixed_shape().
  virtual BatchShape shape(const ModelConfig& config, std::int64_t samples) const;
  /// The fields of a micro-batch of this shape, without memory.
  virtual ModelBatch fields(const ModelConfig& config, const BatchShape& shape) const = 0;
  /// Completes a zeroed micro-batch of this shape so that every row is full.
  virtual void fill(const ModelConfig&, const BatchShape&, ModelBatch&) const {}
  /// Turns every row into padding. Only without fixed_shape().
  virtual void clear(ModelBatch& batch) const;

  // Data and runs.

  /// True if training data of this deck may leave out damaged rows, and tell so only in the
  /// micro-batch (ModelBatch::dropped). A step then waits for all of its micro-batches.
  virtual bool drops_rows(const Deck&) const { return false; }

  /// Collective over the mesh. Opens the training data that the deck names.
  virtual std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch,
                                                  Mesh& mesh, Logger& log) const = 0;
  /// Collective over the mesh. Opens the validation data of the deck. `vocabulary`: that of the
  /// checkpoint (see TrainingData::vocabulary_json), which the data must share; "" accepts any. By
  /// default the training data validate (src/run/training_data.cpp).
  virtual std::unique_ptr<EvaluationData> open_evaluation(const Deck& deck,
                                                          const std::string& vocabulary, Mesh& mesh,
                                                          Logger& log) const;
  /// Local. Micro-batches of random content and random lengths as functions of their global index.
  /// `choir verify` compares layouts with them.
  virtual std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config,
                                                              std::uint64_t seed,
                                                              std::int64_t samples) const = 0;
  /// Collective over the mesh. The batches of `choir bench step`; by default synthetic_batches()
  /// (src/lab/bench/bench_batches.cpp).
  virtual std::unique_ptr<BenchBatches> bench_batches(const Deck& deck, const BatchSizes& batch,
                                                      Mesh& mesh, Logger& log,
                                                      const BenchAudio& audio) const;
  /// Local. Rows and widths of a micro-batch of this shape for `choir bench ops`, without the
  /// number of parameters. By default there are none (0 rows), and the bench is not offered.
  virtual ops::BenchShape op_shape(const ModelConfig&, const BatchShape&) const;
  /// The vocabulary size that a bench uses if neither deck nor data define it; 0: none.
  virtual std::int64_t usual_vocab_size() const { return 0; }
  /// Local. Refuses runs from which the model cannot start (checkpoint.init_from) although names
  /// and shapes match, for example because of another vocabulary. `vocabulary`: that of the
  /// training data, in the form of StartingPoint::vocabulary.
  virtual void check_start(const Deck&, const std::vector<StartingPoint>&,
                           const std::string& vocabulary) const {
    (void)vocabulary;
  }

  /// Runs the passes that validation runs for each of its batches, in a plan on the null device; by
  /// default those of the losses (src/run/training_data.cpp).
  virtual void evaluate_once(ModelInstance& instance, const ModelBatch& batch) const;
  /// True if runs of this deck write samples of the model's output.
  virtual bool writes_samples(const Deck&) const { return false; }
  /// Runs the passes of the largest such sample, in a plan on the null device.
  virtual void sample_once(ModelInstance&) const {}
};

/// A family whose keys are bound to `Settings` and whose model is a `Made`, built from a `Config`.
template <class Settings, class Config, class Made>
class FamilyOf : public ModelFamily {
 public:
  std::unique_ptr<HeldSettings> settings() const final {
    return std::make_unique<SettingsOf<Settings>>();
  }
  std::unique_ptr<Model> make(const ModelConfig& config, ParameterSet& parameters,
                              const ModelCut& cut) const final {
    return std::make_unique<Made>(config.as<Config>(), parameters, cut);
  }
};

/// A micro-batch of a given shape in host memory, for callers that fill it themselves: plans,
/// probes, tests.
class HostBatch {
 public:
  /// Full rows of zeros: tokens 0, silence, labels 0, all lengths as large as the shape allows. The
  /// object owns the memory of its views.
  HostBatch(const ModelConfig& config, const BatchShape& shape);
  HostBatch(const HostBatch&) = delete;
  HostBatch& operator=(const HostBatch&) = delete;

  /// Turns every row into padding.
  void clear() { family_->clear(batch); }

  ModelBatch batch;

 private:
  const ModelFamily* family_;
  std::vector<std::byte> memory_;
};

}  // namespace choir
