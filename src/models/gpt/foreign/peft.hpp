#pragma once
// Low-rank adapters of PEFT: adapter_config.json and adapter_model.safetensors. The adapter of a
// module in PEFT is a pair of factors here. A fused module, which is q, k and v, or gate and up,
// has several pairs here. PEFT's pair for it becomes pairs that begin with the same A. Pairs that
// were trained here differ in A, and are written as one pair of a larger rank: their A are stacked,
// and each B is a block on the diagonal, so that the product has the rows of each pair's product.
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/store/open.hpp"
#include "src/store/tensor_file.hpp"

namespace choir {

inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// One of our factors, and its position in the PEFT file.
struct FactorPart {
  std::string own;
  Shape shape;           ///< ours
  std::string weight;    ///< our weight that it belongs to
  std::int64_t row = 0;  ///< first row of that weight that the pair changes
  bool is_b = false;
  std::string name;        ///< name in the file
  Shape whole;             ///< shape in the file
  std::int64_t first = 0;  ///< first element in the file's tensor of the rows that are ours
  /// First column of the file's rows that is ours; the others of a stacked B are zero.
  std::int64_t column = 0;
  /// Not 0: that many rows of ours are adjacent in the file, and the next ones begin three times as
  /// many further (q, k and v of each head).
  std::int64_t head_rows = 0;

  /// The position in the file's tensor of row `row` of ours.
  std::int64_t there(std::int64_t row) const {
    const std::int64_t skipped = head_rows > 0 ? 2 * (row / head_rows * head_rows) : 0;
    return first + (row + skipped) * whole[1];
  }
  /// The number of rows from `row` on that are adjacent in the file.
  std::int64_t adjacent(std::int64_t row) const {
    return (head_rows > 0 ? head_rows - row % head_rows : shape[0] - row);
  }
};

/// Fused modules, by the names that kFusedModules has, whose adapters are stacked.
using StackedModules = std::set<std::string, std::less<>>;
/// All that there are: the form in which adapters are written.
StackedModules all_fused_modules();

/// The part of every factor of the model, in its order. Sections of stacked modules that have no
/// adapter, as k where q and v do, are parts without a name of ours, whose values are zero.
std::vector<FactorPart> factor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect, const StackedModules& stacked = {});

/// Local. Reads rows of a factor from a file's tensor. StorageError if the block of a stacked B is
/// not alone in its rows.
void read_factor_rows(const TensorReader& from, const std::string& name, const FactorPart& part,
                      const RowSlab& to, FiniteCheck& check);
/// Local. Writes rows of a factor, with the zeros beside them. Without data, all are zero.
void write_factor_rows(TensorWriter& to, const FactorPart& part, const RowSlab& from);

/// An adapter for a model of a dialect.
struct PeftAdapter {
  Lora lora;
  std::unique_ptr<TensorReader> weights;
  std::unordered_map<std::string, const TensorEntry*> by_name;  ///< of weights
  StackedModules stacked;

  /// The factor's tensor in the file; nullptr if it has none.
  const TensorEntry* find(const FactorPart& part) const;
};

/// Local. DeckError that lists every key of adapter_config.json that is unsupported, or unknown
/// unless `allow_unknown`; StorageError for tensors that are not factors of targets.
PeftAdapter open_peft(const std::string& folder, bool allow_unknown);
/// StorageError that lists factors that are missing or of another shape, and tensors that are not
/// in the model; DataError if no factor matches. Returns the missing elements of `parts`.
std::vector<const FactorPart*> require_fit(const PeftAdapter& adapter,
                                           const std::vector<FactorPart>& parts, bool allow_missing,
                                           bool allow_unused);

/// Local. StorageError if a stacked B changes rows of a section that has no adapter.
void require_empty_sections(const PeftAdapter& adapter, const std::vector<FactorPart>& parts);

/// adapter_config.json for parts of which all fused modules are stacked.
std::string peft_config(const Lora& lora, const std::vector<FactorPart>& parts, Dialect dialect);

/// Adapters of a checkpoint, to be added to rows of the weights that they belong to.
class AdapterSum {
 public:
  /// Collective; reads all factors. DeckError if every B is still zero.
  AdapterSum(const Checkpoint& checkpoint, const GptConfig& config, Communicator& world);
  /// Local. Adds to rows of this parameter, in double precision with a single rounding.
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

/// Collective. Reads a whole tensor of a checkpoint into this rank's memory, as doubles.
std::vector<double> whole_tensor(const Checkpoint& checkpoint, const std::string& name,
                                 const Shape& shape, Communicator& world);

}  // namespace choir
