#pragma once
// Low-rank adapters of PEFT: adapter_config.json and adapter_model.safetensors. The adapter of a
// module there is a pair of factors here; GPT-2's c_attn, which is one module, is three pairs,
// which begin with the same A.
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/open.hpp"
#include "choir/store/tensor_reader.hpp"
#include "src/models/gpt/foreign/part_io.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"

namespace choir {

inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// One of our factors, and where it is there.
struct FactorPart {
  std::string own;
  Shape shape;           ///< ours
  std::string weight;    ///< the weight that it is beside, ours
  std::int64_t row = 0;  ///< of that weight: the first that the pair is about
  bool is_b = false;
  std::string name;        ///< there
  Shape whole;             ///< there
  std::int64_t first = 0;  ///< element there that it begins with
};

/// The part of every factor of the model, in its order.
std::vector<FactorPart> factor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect);

/// An adapter for a model of that dialect.
struct PeftAdapter {
  Lora lora;
  std::unique_ptr<TensorReader> weights;
  std::unordered_map<std::string, const TensorEntry*> by_name;  ///< of weights

  /// The name in the file; nullptr: it is not there.
  const TensorEntry* find(const FactorPart& part) const;
};

/// Local. DeckError that lists every key of adapter_config.json that is not supported, or not known
/// unless `allow_unknown`; StorageError for tensors that are no factors of targets.
PeftAdapter open_peft(const std::string& folder, bool allow_unknown);
/// StorageError that lists factors that are missing or of another shape, and tensors that are none
/// of the model's; DataError where no factor is there. Returns those of `parts` that are missing.
std::vector<const FactorPart*> require_fit(const PeftAdapter& adapter,
                                           const std::vector<FactorPart>& parts, bool allow_missing,
                                           bool allow_unused);

/// adapter_config.json.
std::string peft_config(const Lora& lora, const std::vector<FactorPart>& parts, Dialect dialect);

/// Adapters of a checkpoint, to be added to rows of the weights that they are beside.
class AdapterSum {
 public:
  /// Collective; reads all factors. DeckError where every B is zero still.
  AdapterSum(const Checkpoint& checkpoint, const GptConfig& config, Communicator& world);
  /// Local. Rows of this parameter; in double, rounded once.
  void add_to(const std::string& parameter, const RowSlab& slab) const;

 private:
  struct Pair {
    std::string weight;
    std::int64_t row = 0, rows = 0, rank = 0, columns = 0;
    std::vector<double> a, b;
  };
  double factor_;
  std::vector<Pair> pairs_;
};

/// Collective: this rank's memory gets the whole tensor of a checkpoint, as doubles.
std::vector<double> whole_tensor(const Checkpoint& checkpoint, const std::string& name,
                                 const Shape& shape, Communicator& world);

}  // namespace choir
