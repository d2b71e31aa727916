#include "src/lab/bench/bench_shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "choir/models/family.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/device/null_device.hpp"
#include "src/lab/bench/bench_batches.hpp"

#include "src/train/step/step_planner.hpp"

namespace choir {
namespace {

/// Weights by their extents, with one name for all layers: "blocks.*.attention.qkv"; "+2" if two
/// others have the same extents.
class WeightNames {
 public:
  explicit WeightNames(const ModelConfig& model) {
    ParameterSet parameters;
    const std::unique_ptr<Model> described = model.family().make(model, parameters, {});
    for (const Parameter* p : parameters.all())
      if (p->shape.rank() >= 2) {
        const Shape held = local_shape(p->shape, p->shard, p->split);  // padding included
        std::vector<std::string>& names = names_[{held[0], held.count() / held[0]}];
        if (std::string name = of_all_layers(p->name);
            std::find(names.begin(), names.end(), name) == names.end())
          names.push_back(std::move(name));
      }
  }
  std::string of(std::int64_t out, std::int64_t in) const {
    const auto found = names_.find({out, in});
    if (found == names_.end()) return "product";
    const std::vector<std::string>& names = found->second;
    return names.size() == 1 ? names[0] : fmt::format("{} +{}", names[0], names.size() - 1);
  }

 private:
  static std::string of_all_layers(const std::string& name) {
    std::vector<std::string> parts = split(name, '.');
    if (parts.size() > 1 && parts.back() == "weight") parts.pop_back();
    for (std::string& part : parts)
      if (part.find_first_not_of("0123456789") == std::string::npos) part = "*";
    return fmt::format("{}", fmt::join(parts, "."));
  }
  std::map<std::array<std::int64_t, 2>, std::vector<std::string>> names_;
};

std::string name_of(const ProductWork& p, const WeightNames& weights) {
  if (p.batch > 1) return fmt::format("{} in one call", p.batch);
  if (p.transpose_a) return weights.of(p.m, p.n) + " d_weight";
  return p.transpose_b ? weights.of(p.n, p.k) + " forward" : weights.of(p.k, p.n) + " d_input";
}

void take_products(const WorkRecord& record, DeckWork& work) {
  std::map<ProductWork, std::int64_t> counts;
  for (const auto& [place, done] : record.places)
    for (const auto& [product, count] : done.products) counts[product] += count;
  const WeightNames weights(work.model);
  for (const auto& [p, count] : counts)
    if (p.m * p.n * p.k > 0)
      work.gemms[p.in].push_back({.name = name_of(p, weights),
                                  .m = p.m,
                                  .n = p.n,
                                  .k = p.k,
                                  .batch = p.batch,
                                  .transpose_a = p.transpose_a,
                                  .transpose_b = p.transpose_b,
                                  .to_gradient = p.transpose_a && p.batch == 1,
                                  .calls = count});
  const auto all = [](const StepGemm& g) { return g.flops() * static_cast<double>(g.calls); };
  for (auto& [type, gemms] : work.gemms)
    std::stable_sort(gemms.begin(), gemms.end(),
                     [&](const StepGemm& a, const StepGemm& b) { return all(a) > all(b); });
}

void take_attention(const WorkRecord& record, DeckWork& work) {
  std::map<AttentionWork, std::int64_t> counts;
  for (const auto& [place, done] : record.places)
    if (place.part == WorkPart::forward)
      for (const auto& [attention, count] : done.attention)
        if (attention.queries == attention.keys) counts[attention] += count;
  for (const auto& [a, count] : counts)
    work.attention.push_back({.batch = a.batch,
                              .heads = a.heads,
                              .kv_heads = a.kv_heads,
                              .head_width = a.head_width,
                              .tokens = a.keys,
                              .causal = a.causal,
                              .calls = count});
}

}  // namespace

DeckWork work_of(Deck deck, std::int64_t symbols, Mesh& mesh, const Device& device, Logger& log) {
  const ModelFamily& family = deck.family();
  deck.parallel = {};
  // A micro-batch size given in the deck does not depend on the ranks that share the global batch.
  const std::int64_t named = deck.train.micro_batch_size;
  BatchSizes batch = family.fixed_shape() && named > 0
                         ? BatchSizes{.micro = named, .accum = 1, .global = named}
                         : resolve_batch(deck, mesh.world().size());
  std::int64_t& vocabulary = family.vocab_size(deck);
  const bool open = vocabulary == 0;
  if (open) vocabulary = family.usual_vocab_size() > 0 ? family.usual_vocab_size() : symbols;
  std::vector<BatchShape> shapes;
  if (!family.fixed_shape()) {
    const std::unique_ptr<BenchBatches> data = family.bench_batches(deck, batch, mesh, log, {});
    shapes = data->shapes();
    if (open && data->vocab_size() > 0) vocabulary = data->vocab_size();
  }
  DeckWork work;
  together(mesh.world(), [&] {
    batch.accum = 1;
    EngineOptions options = engine_options(deck, batch);
    options.shapes = std::move(shapes);
    WorkRecord record;
    plan_step(options, Layout(), 0, 1, false, &device, false, &record);
    work.model = options.model;
    const std::vector<BatchShape> all = shapes_of(options);
    work.shape =
        *std::max_element(all.begin(), all.end(), [&](const BatchShape& a, const BatchShape& b) {
          return bytes_of_fields(family.fields(options.model, a)) <
                 bytes_of_fields(family.fields(options.model, b));
        });
    take_products(record, work);
    take_attention(record, work);
  });
  return work;
}

}  // namespace choir
