// Adapters of fused modules, which PEFT has as one pair of factors and a run as several: q, k and v
// of GPT-2, Phi-3 and GPT-NeoX, and gate and up of Phi-3.
#include "src/models/gpt/foreign/peft.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/store/directory.hpp"
#include "src/store/safetensors/safetensors.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

const std::map<std::string, std::string>& fused_configs() {
  static const std::map<std::string, std::string> kAll{
      {"gpt2", R"({"model_type": "gpt2", "vocab_size": 24, "n_positions": 32, "n_embd": 16,
          "n_layer": 2, "n_head": 4, "layer_norm_epsilon": 1e-05})"},
      {"gpt_neox", R"({"model_type": "gpt_neox", "vocab_size": 24, "max_position_embeddings": 32,
          "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
          "num_attention_heads": 4, "rotary_pct": 0.5})"},
      {"phi3", R"({"model_type": "phi3", "vocab_size": 24, "max_position_embeddings": 32,
          "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2})"}};
  return kAll;
}

constexpr std::int64_t kRank = 2;

/// A model with adapters, and the numbers of its factors.
struct Adapted {
  ForeignModel model;
  ParameterSet parameters;
  std::vector<FactorPart> parts;  ///< stacked
  std::map<std::string, std::vector<double>> values;

  Adapted(const std::string& name, const std::vector<std::string>& targets, bool rank_stabilised)
      : model(model_from_hf(fused_configs().at(name), name, false)) {
    model.config.lora = {
        .rank = kRank, .alpha = 3, .rank_stabilised = rank_stabilised, .targets = targets};
    parameters = described_parameters(model.config);
    parts = factor_parts(model.config, parameters, model.dialect, all_fused_modules());
    for (const Parameter* p : parameters.all())
      for (std::int64_t i = 0; is_adapter(p->name) && i < p->shape.count(); ++i)
        values[p->name].push_back(std::sin(0.37 * static_cast<double>(i) + 1.3 * values.size()));
  }

  /// The file and the description of the adapter, without one of the parts if there is a name.
  void write(const std::string& folder) const {
    std::vector<TensorEntry> entries;
    std::set<std::string> seen;
    for (const FactorPart& part : parts)
      if (seen.insert(part.name).second) entries.push_back({part.name, Encoding::f64, part.whole});
    SafetensorsWriter writer(folder, std::move(entries), {.stem = "adapter_model"});
    writer.lay_out();
    for (const FactorPart& part : parts) {
      std::vector<double> rows = part.own.empty() ? std::vector<double>() : values.at(part.own);
      write_factor_rows(writer, part,
                        {.rows = part.shape[0],
                         .data = rows.empty() ? nullptr : reinterpret_cast<std::byte*>(rows.data()),
                         .dtype = DType::f64});
    }
    writer.sync();
    writer.commit(writer.written());  // every number was written exactly once
    write_text_file(folder + "/" + kAdapterConfig,
                    peft_config(model.config.lora, parts, model.dialect));
  }
};

std::vector<double> tensor_of(const TensorReader& from, const std::string& name) {
  for (const TensorEntry& entry : from.tensors())
    if (entry.name == name) {
      std::vector<double> all(static_cast<std::size_t>(entry.shape.count()));
      from.read(name, 0, entry.shape.count(), all.data(), DType::f64);
      return all;
    }
  ADD_FAILURE() << "no " << name;
  return {};
}

/// Adds B A of one pair to the rows [row, ...) of the module's matrix.
void add_product(std::vector<double>& to, const std::vector<double>& a,
                 const std::vector<double>& b, std::int64_t rank,
                 const std::vector<std::int64_t>& rows) {
  const std::int64_t columns = std::ssize(a) / rank;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::int64_t k = 0; k < rank; ++k)
      for (std::int64_t c = 0; c < columns; ++c)
        to.at(static_cast<std::size_t>(rows[i] * columns + c)) +=
            b[i * static_cast<std::size_t>(rank) + static_cast<std::size_t>(k)] *
            a[static_cast<std::size_t>(k * columns + c)];
}

/// The rows of a module that the rows of a factor B belong to, as its weight has them.
std::vector<std::int64_t> rows_there(const std::vector<TensorPart>& weights, const FactorPart& b) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < b.shape[0]; ++row)
    for (const TensorPart& weight : weights) {
      if (weight.own != b.weight) continue;
      for (const PartRun& run : runs_of(weight, b.row + row, 1)) {
        // A transposed weight has a run for each column.
        rows.push_back(weight.transposed ? run.there : run.there / weight.columns);
        break;
      }
    }
  return rows;
}

/// The part of B that belongs to this part of A.
const FactorPart& b_of(const Adapted& run, const FactorPart& a) {
  for (const FactorPart& b : run.parts)
    if (b.is_b && b.weight == a.weight && b.row == a.row) return b;
  throw std::logic_error("no B beside " + a.name);
}

const std::vector<std::vector<std::string>>& target_sets() {
  static const std::vector<std::vector<std::string>> kAll{
      {"q", "k", "v", "o", "up", "down"}, {"q", "v"}, {"k"}, {"v", "down"}};
  return kAll;
}

TEST(Peft, FusedModulesHaveStackedFactorsWithTheSameProduct) {
  for (const auto& [name, config] : fused_configs())
    for (const auto& targets : target_sets()) {
      SCOPED_TRACE(name + " " + targets.front());
      const Adapted run(name, targets, false);
      const test::ScratchFolder folder;
      run.write(folder.path());
      const auto weights = tensor_parts(run.model.config, run.parameters, run.model.dialect);
      const PeftAdapter adapter = open_peft(folder.path(), false);
      // The product of each module, by the name of its A.
      std::map<std::string, std::vector<double>> wanted;
      for (const FactorPart& a : run.parts) {
        if (a.is_b) continue;
        const FactorPart& b = b_of(run, a);
        auto& product = wanted[a.name];
        product.resize(static_cast<std::size_t>(b.whole[0] * a.whole[1]));
        if (!a.own.empty())
          add_product(product, run.values.at(a.own), run.values.at(b.own), kRank,
                      rows_there(weights, b));
      }
      for (const auto& [a, product] : wanted) {
        std::string b = a;
        b.replace(b.rfind("lora_A"), 6, "lora_B");
        std::vector<double> found(product.size());
        const TensorEntry* entry = adapter.by_name.at(a);
        std::vector<std::int64_t> rows(found.size() / static_cast<std::size_t>(entry->shape[1]));
        std::iota(rows.begin(), rows.end(), 0);
        add_product(found, tensor_of(*adapter.weights, a), tensor_of(*adapter.weights, b),
                    entry->shape[0], rows);
        for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], product[i], 1e-12);
      }
    }
}

TEST(Peft, StackedFactorsAreReadAgain) {
  for (const auto& [name, config] : fused_configs())
    for (const auto& targets : target_sets()) {
      SCOPED_TRACE(name + " " + targets.front());
      const Adapted run(name, targets, targets.size() == 2);
      const test::ScratchFolder folder;
      run.write(folder.path());
      const PeftAdapter adapter = open_peft(folder.path(), false);
      EXPECT_EQ(adapter.lora.targets, targets);
      EXPECT_EQ(adapter.lora.factor(), run.model.config.lora.factor());
      const auto parts =
          factor_parts(run.model.config, run.parameters, run.model.dialect, adapter.stacked);
      EXPECT_TRUE(require_fit(adapter, parts, false, false).empty());
      FiniteCheck check;
      for (const FactorPart& part : parts) {
        if (part.own.empty()) continue;
        std::vector<double> rows(static_cast<std::size_t>(part.shape.count()));
        read_factor_rows(*adapter.weights, adapter.find(part)->name, part,
                         {.rows = part.shape[0],
                          .data = reinterpret_cast<std::byte*>(rows.data()),
                          .dtype = DType::f64},
                         check);
        EXPECT_EQ(rows, run.values.at(part.own)) << part.own;
      }
    }
}

TEST(Peft, AStackThatWasTrainedAsOneIsRefused) {
  Adapted run("phi3", {"gate", "up"}, false);
  for (FactorPart& part : run.parts)
    if (part.is_b) part.column = kRank - part.column;  // the other block
  const test::ScratchFolder folder;
  run.write(folder.path());
  const PeftAdapter adapter = open_peft(folder.path(), false);
  FiniteCheck check;
  int refused = 0;
  for (const FactorPart& part :
       factor_parts(run.model.config, run.parameters, run.model.dialect, adapter.stacked)) {
    std::vector<double> rows(static_cast<std::size_t>(part.shape.count()));
    const RowSlab slab{.rows = part.shape[0],
                       .data = reinterpret_cast<std::byte*>(rows.data()),
                       .dtype = DType::f64};
    try {
      read_factor_rows(*adapter.weights, adapter.find(part)->name, part, slab, check);
    } catch (const StorageError& error) {
      EXPECT_NE(std::string(error.what()).find("mlp.gate_up_proj"), std::string::npos);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 2 * 2) << "B of gate and up in both layers";
}

// Rows of k, which has no adapter here, are not read with those of q and v.
TEST(Peft, AStackThatChangesASectionWithoutAnAdapterIsRefused) {
  for (const bool damaged : {false, true}) {
    Adapted run("gpt_neox", {"q", "v"}, false);
    std::vector<double> ones;
    for (FactorPart& part : run.parts)
      if (damaged && part.own.empty() && part.is_b) {
        part.own = "k";
        ones.assign(static_cast<std::size_t>(part.shape.count()), 0);
        ones.back() = 1e-30;
      }
    if (damaged) run.values["k"] = ones;
    const test::ScratchFolder folder;
    run.write(folder.path());
    const PeftAdapter adapter = open_peft(folder.path(), false);
    const auto parts =
        factor_parts(run.model.config, run.parameters, run.model.dialect, adapter.stacked);
    if (damaged)
      EXPECT_THROW(require_empty_sections(adapter, parts), StorageError);
    else
      EXPECT_NO_THROW(require_empty_sections(adapter, parts));
  }
}

TEST(Peft, OtherRanksOfModulesAreRefused) {
  const Adapted run("phi3", {"q", "v"}, false);
  const test::ScratchFolder folder;
  run.write(folder.path());
  const std::string path = folder / kAdapterConfig;
  const std::string good = read_capped_file(path, 1).text;
  for (const auto& [from, to] : {std::pair(R"("qkv_proj": 6)", R"("qkv_proj": 4)"),
                                 {R"("qkv_proj": 6)", R"("o_proj": 6)"},
                                 {R"("qkv_proj": 9.0)", R"("qkv_proj": 3.0)"},
                                 {R"("qkv_proj": 9.0)", R"("qkv_proj": 9.0, "o_proj": 3.0)"},
                                 {R"("r": 2)", R"("r": 6)"}}) {
    std::string text = good;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from << " in " << good;
    write_text_file(path, text.replace(at, std::string(from).size(), to));
    try {
      open_peft(folder.path(), false);
      ADD_FAILURE() << to;
    } catch (const DeckError& error) {
      EXPECT_NE(std::string(error.what()).find("_pattern"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace choir
