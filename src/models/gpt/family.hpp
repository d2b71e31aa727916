#pragma once
// The family model.type = "gpt": decoder-only transformers over sequences of tokens, and their keys
// in the deck.

#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/models/blend_section.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

/// A GptConfig whose zeros are derived later: vocab_size from the data, the others from its
/// members.
inline GptConfig undetermined_gpt() {
  GptConfig gpt;
  gpt.vocab_size = gpt.n_kv_head = gpt.ffn_width = 0;
  return gpt;
}

struct GptSettings : BlendSection {
  GptConfig model = undetermined_gpt();
  std::string tokenizer = "char";  ///< char | byte | a file, for text
  std::string text_field = "text";
  bool on_the_fly = false;
  int text_threads = 2;
  double val_fraction = 0.1;
  std::string documents = "ignore";  ///< ignore | separate
  std::int64_t document_end = -1;    ///< the token that ends a document; -1: see its help
  std::int64_t eval_batches = 200;   ///< global batches of a set; 0: all of the validation data
  int sample_tokens = 200;           ///< 0: no sample
  std::string sample_prompt = "\n";
  double sample_temperature = 0.8;
  int sample_top_k = 0;  ///< 0: all
};

inline const GptSettings& gpt_settings(const Deck& deck) {
  return deck.families.of<GptSettings>();
}
/// The transformer that the deck describes; GptFamily::model() adds what the data determine.
inline const GptConfig& gpt_of(const Deck& deck) {
  return gpt_settings(deck).model;
}
/// The options of a validation set of texts or conversations.
inline constexpr EvalWords kTextEvalWords{.batches = true};
/// True if rows of tokens have several documents that do not see each other.
inline bool separates_documents(const Deck& deck) {
  return gpt_settings(deck).documents == "separate";
}

/// The keys of a decoder, without their section ("model" of a Gpt); the derivation of values that
/// are 0; and the problems of dividing its sequences among ranks of the context axis, in the words
/// of a Gpt.
const KeyTable<GptConfig>& decoder_keys();
/// Keys of the section "train" that belong to the head of tokens.
const KeyTable<GptConfig>& head_keys();
void derive_decoder(Deck& deck, GptConfig& gpt, const std::string& section);
std::vector<KeyProblem> check_context(const Deck& deck, const GptConfig& gpt);

/// The default of ffn_width: 4 C, or for swiglu 8/3 C rounded up to a multiple of 64.
std::int64_t default_ffn_width(const GptConfig& gpt);

/// Returns the problems of a model, for example sizes that do not divide, with the nearest legal
/// values. n_kv_head may still be 0.
std::vector<KeyProblem> check_model(const GptConfig& gpt);

/// Returns the problems of a model divided among `ranks` of the tensor axis, and those of its
/// tiles.
std::vector<KeyProblem> check_tensor_size(const GptConfig& gpt, std::int64_t ranks);

class GptFamily final : public FamilyOf<GptSettings, GptConfig, Gpt> {
 public:
  std::string_view name() const override { return "gpt"; }
  FamilyWords words() const override { return {.use = "`choir generate` continues text with it"}; }
  const KeySet& keys() const override;
  void derive(Deck& deck) const override;
  std::vector<KeyProblem> check(const Deck& deck) const override;
  ModelConfig model(const Deck& deck) const override;
  std::int64_t& vocab_size(Deck& deck) const override;
  bool fixed_shape() const override { return true; }

  std::vector<LossTerm> loss_terms(const ModelConfig& config) const override;
  UnitCosts unit_costs(const ModelConfig& config) const override;
  HeadChunk head_chunk(const ModelConfig& config, DType logits) const override;
  void limit_head_chunk(ModelConfig& config, std::int64_t rows) const override;
  AttentionTiles attention_tiles(const ModelConfig& config) const override;
  std::vector<TiedNames> tied(const ModelConfig& config) const override;
  std::vector<KeyProblem> check_tensor_size(const ModelConfig& config,
                                            std::int64_t ranks) const override;
  std::int64_t query_heads(const ModelConfig& config) const override;
  std::string describe(const ModelConfig& config) const override;
  bool generates() const override { return true; }
  BatchShape shape(const ModelConfig& config, std::int64_t samples) const override;
  ModelBatch fields(const ModelConfig& config, const BatchShape& shape) const override;
  ops::BenchShape op_shape(const ModelConfig& config, const BatchShape& shape) const override;

  std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                          Logger& log) const override;
  std::unique_ptr<EvaluationData> open_evaluation(const Deck& deck, const std::string& vocabulary,
                                                  Mesh& mesh, Logger& log) const override;
  std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config, std::uint64_t seed,
                                                      std::int64_t samples) const override;
  std::unique_ptr<BenchBatches> bench_batches(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                              Logger& log, const BenchAudio& audio) const override;
  bool writes_samples(const Deck& deck) const override;
  void sample_once(ModelInstance& instance) const override;
};

const ModelFamily& gpt_family();

}  // namespace choir
