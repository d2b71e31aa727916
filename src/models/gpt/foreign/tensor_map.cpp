#include "src/models/gpt/foreign/tensor_map.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

#include "src/models/gpt/foreign/gguf.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/store/encoding.hpp"

namespace choir {
namespace {

enum class Form : std::uint8_t { as_is, transposed, interleaved, head_by_head };

struct There {
  std::string_view name;
  Form form = Form::as_is;
};
constexpr There transposed(std::string_view name) {
  return {name, Form::transposed};
}
constexpr There interleaved(std::string_view name) {
  return {name, Form::interleaved};
}
constexpr There head_by_head(std::string_view name) {
  return {name, Form::head_by_head};
}

/// Our name of a tensor and its names in the other program; N is the layer. Several names are q, k
/// and v, or gate and up, which are one tensor here. Biases have the names of the weights, and
/// their form unless it is transposed.
struct Row {
  std::string_view own;
  std::vector<There> there;
};

struct Table {
  std::vector<Row> rows;
  std::string_view weight = ".weight", bias = ".bias";
  /// A tied head is stored as well.
  bool repeats_head = false;
};

const Table kHfGpt2{{
    {"embedding.tokens", {{"transformer.wte"}}},
    {"embedding.positions", {{"transformer.wpe"}}},
    {"blocks.N.attention_norm", {{"transformer.h.N.ln_1"}}},
    {"blocks.N.attention.qkv", {transposed("transformer.h.N.attn.c_attn")}},
    {"blocks.N.attention.output", {transposed("transformer.h.N.attn.c_proj")}},
    {"blocks.N.feed_forward_norm", {{"transformer.h.N.ln_2"}}},
    {"blocks.N.feed_forward.input", {transposed("transformer.h.N.mlp.c_fc")}},
    {"blocks.N.feed_forward.output", {transposed("transformer.h.N.mlp.c_proj")}},
    {"final_norm", {{"transformer.ln_f"}}},
    {"head", {{"lm_head"}}},
}};

std::vector<Row> all_rows(std::initializer_list<std::vector<Row>> groups) {
  std::vector<Row> rows;
  for (const std::vector<Row>& group : groups) rows.insert(rows.end(), group.begin(), group.end());
  return rows;
}

// The classes of transformers with Llama's names differ in two points: the norms, where
// post_attention_layernorm is in front of the second branch or behind the first one, and whether q,
// k and v, and gate and up, are one tensor.
const std::vector<Row> kHfCommon{
    {"embedding.tokens", {{"model.embed_tokens"}}},
    {"blocks.N.attention_norm", {{"model.layers.N.input_layernorm"}}},
    {"blocks.N.attention.output", {{"model.layers.N.self_attn.o_proj"}}},
    {"blocks.N.attention.query_norm", {{"model.layers.N.self_attn.q_norm"}}},
    {"blocks.N.attention.key_norm", {{"model.layers.N.self_attn.k_norm"}}},
    {"blocks.N.feed_forward.output", {{"model.layers.N.mlp.down_proj"}}},
    {"final_norm", {{"model.norm"}}},
    {"head", {{"lm_head"}}},
};
const std::vector<Row> kHfSeparate{
    {"blocks.N.attention.qkv",
     {{"model.layers.N.self_attn.q_proj"},
      {"model.layers.N.self_attn.k_proj"},
      {"model.layers.N.self_attn.v_proj"}}},
    {"blocks.N.feed_forward.input",
     {{"model.layers.N.mlp.gate_proj"}, {"model.layers.N.mlp.up_proj"}}},
};
const std::vector<Row> kHfFused{
    {"blocks.N.attention.qkv", {{"model.layers.N.self_attn.qkv_proj"}}},
    {"blocks.N.feed_forward.input", {{"model.layers.N.mlp.gate_up_proj"}}},
};
const std::vector<Row> kHfNormsBefore{
    {"blocks.N.feed_forward_norm", {{"model.layers.N.post_attention_layernorm"}}},
};
const std::vector<Row> kHfNormsBehind{
    {"blocks.N.attention_post_norm", {{"model.layers.N.post_attention_layernorm"}}},
    {"blocks.N.feed_forward_norm", {{"model.layers.N.pre_feedforward_layernorm"}}},
    {"blocks.N.feed_forward_post_norm", {{"model.layers.N.post_feedforward_layernorm"}}},
};
const Table kHfLlama{all_rows({kHfCommon, kHfSeparate, kHfNormsBefore})};
const Table kHfPost{all_rows({kHfCommon, kHfSeparate, kHfNormsBehind})};
const Table kHfPhi3{all_rows({kHfCommon, kHfFused, kHfNormsBefore})};

const Table kHfNeox{{
    {"embedding.tokens", {{"gpt_neox.embed_in"}}},
    {"blocks.N.attention_norm", {{"gpt_neox.layers.N.input_layernorm"}}},
    {"blocks.N.attention.qkv", {head_by_head("gpt_neox.layers.N.attention.query_key_value")}},
    {"blocks.N.attention.output", {{"gpt_neox.layers.N.attention.dense"}}},
    {"blocks.N.feed_forward_norm", {{"gpt_neox.layers.N.post_attention_layernorm"}}},
    {"blocks.N.feed_forward.input", {{"gpt_neox.layers.N.mlp.dense_h_to_4h"}}},
    {"blocks.N.feed_forward.output", {{"gpt_neox.layers.N.mlp.dense_4h_to_h"}}},
    {"final_norm", {{"gpt_neox.final_layer_norm"}}},
    {"head", {{"embed_out"}}},
}};

const Table kNanoGpt{.rows{
                         {"embedding.tokens", {{"transformer.wte"}}},
                         {"embedding.positions", {{"transformer.wpe"}}},
                         {"blocks.N.attention_norm", {{"transformer.h.N.ln_1"}}},
                         {"blocks.N.attention.qkv", {{"transformer.h.N.attn.c_attn"}}},
                         {"blocks.N.attention.output", {{"transformer.h.N.attn.c_proj"}}},
                         {"blocks.N.feed_forward_norm", {{"transformer.h.N.ln_2"}}},
                         {"blocks.N.feed_forward.input", {{"transformer.h.N.mlp.c_fc"}}},
                         {"blocks.N.feed_forward.output", {{"transformer.h.N.mlp.c_proj"}}},
                         {"final_norm", {{"transformer.ln_f"}}},
                         {"head", {{"lm_head"}}},
                     },
                     .repeats_head = true};

// A name without a layer, where ours has one, is a tensor of all layers.
const Table kLlmc{.rows{
                      {"embedding.tokens", {{"wte"}}},
                      {"embedding.positions", {{"wpe"}}},
                      {"blocks.N.attention_norm", {{"ln1"}}},
                      {"blocks.N.attention.qkv", {{"qkv"}}},
                      {"blocks.N.attention.output", {{"attproj"}}},
                      {"blocks.N.feed_forward_norm", {{"ln2"}}},
                      {"blocks.N.feed_forward.input", {{"fc"}}},
                      {"blocks.N.feed_forward.output", {{"fcproj"}}},
                      {"final_norm", {{"lnf"}}},
                  },
                  .weight = "w",
                  .bias = "b"};

const Table kGgufGpt2{{
    {"embedding.tokens", {{"token_embd"}}},
    {"embedding.positions", {{"position_embd"}}},
    {"blocks.N.attention_norm", {{"blk.N.attn_norm"}}},
    {"blocks.N.attention.qkv", {{"blk.N.attn_qkv"}}},
    {"blocks.N.attention.output", {{"blk.N.attn_output"}}},
    {"blocks.N.feed_forward_norm", {{"blk.N.ffn_norm"}}},
    {"blocks.N.feed_forward.input", {{"blk.N.ffn_up"}}},
    {"blocks.N.feed_forward.output", {{"blk.N.ffn_down"}}},
    {"final_norm", {{"output_norm"}}},
    {"head", {{"output"}}},
}};

const Table kGgufLlama{{
    {"embedding.tokens", {{"token_embd"}}},
    {"blocks.N.attention_norm", {{"blk.N.attn_norm"}}},
    {"blocks.N.attention.qkv",
     {interleaved("blk.N.attn_q"), interleaved("blk.N.attn_k"), {"blk.N.attn_v"}}},
    {"blocks.N.attention.output", {{"blk.N.attn_output"}}},
    {"blocks.N.feed_forward_norm", {{"blk.N.ffn_norm"}}},
    {"blocks.N.feed_forward.input", {{"blk.N.ffn_gate"}, {"blk.N.ffn_up"}}},
    {"blocks.N.feed_forward.output", {{"blk.N.ffn_down"}}},
    {"final_norm", {{"output_norm"}}},
    {"head", {{"output"}}},
}};

const Table kGgufQwen{{
    {"embedding.tokens", {{"token_embd"}}},
    {"blocks.N.attention_norm", {{"blk.N.attn_norm"}}},
    {"blocks.N.attention.qkv", {{"blk.N.attn_q"}, {"blk.N.attn_k"}, {"blk.N.attn_v"}}},
    {"blocks.N.attention.output", {{"blk.N.attn_output"}}},
    {"blocks.N.attention.query_norm", {{"blk.N.attn_q_norm"}}},
    {"blocks.N.attention.key_norm", {{"blk.N.attn_k_norm"}}},
    {"blocks.N.attention_post_norm", {{"blk.N.post_attention_norm"}}},
    {"blocks.N.feed_forward_norm", {{"blk.N.ffn_norm"}}},
    {"blocks.N.feed_forward_post_norm", {{"blk.N.post_ffw_norm"}}},
    {"blocks.N.feed_forward.input", {{"blk.N.ffn_gate"}, {"blk.N.ffn_up"}}},
    {"blocks.N.feed_forward.output", {{"blk.N.ffn_down"}}},
    {"final_norm", {{"output_norm"}}},
    {"head", {{"output"}}},
}};

const Table kGgufPhi3{{
    {"embedding.tokens", {{"token_embd"}}},
    {"blocks.N.attention_norm", {{"blk.N.attn_norm"}}},
    {"blocks.N.attention.qkv", {{"blk.N.attn_qkv"}}},
    {"blocks.N.attention.output", {{"blk.N.attn_output"}}},
    {"blocks.N.feed_forward_norm", {{"blk.N.ffn_norm"}}},
    {"blocks.N.feed_forward.input", {{"blk.N.ffn_up"}}},
    {"blocks.N.feed_forward.output", {{"blk.N.ffn_down"}}},
    {"final_norm", {{"output_norm"}}},
    {"head", {{"output"}}},
}};

const Table& table_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::hf_gpt2:
      return kHfGpt2;
    case Dialect::hf_llama:
      return kHfLlama;
    case Dialect::hf_post:
      return kHfPost;
    case Dialect::hf_phi3:
      return kHfPhi3;
    case Dialect::hf_neox:
      return kHfNeox;
    case Dialect::nanogpt:
      return kNanoGpt;
    case Dialect::llmc:
      return kLlmc;
    case Dialect::gguf_gpt2:
      return kGgufGpt2;
    case Dialect::gguf_qwen:
      return kGgufQwen;
    case Dialect::gguf_phi3:
      return kGgufPhi3;
    default:
      return kGgufLlama;
  }
}

/// "blocks.12.attention.qkv.bias" -> "blocks.N.attention.qkv", 12, bias.
struct OwnName {
  std::string stem;
  std::int64_t layer = -1;
  bool bias = false;

  explicit OwnName(std::string_view name) {
    const std::size_t end = name.rfind('.');
    bias = name.substr(end + 1) == "bias";
    stem = name.substr(0, end);
    constexpr std::string_view kBlocks = "blocks.";
    if (!stem.starts_with(kBlocks)) return;
    const std::size_t dot = stem.find('.', kBlocks.size());
    layer = std::stoll(stem.substr(kBlocks.size(), dot - kBlocks.size()));
    stem = std::string(kBlocks) + "N" + stem.substr(dot);
  }
};

/// Replaces N by the layer.
std::string with_layer(std::string_view name, std::int64_t layer) {
  const std::size_t at = name.find(".N.");
  if (at == std::string_view::npos) return std::string(name);
  return fmt::format("{}.{}.{}", name.substr(0, at), layer, name.substr(at + 3));
}

/// Our rows for each name in the other program.
std::vector<std::int64_t> rows_for(const GptConfig& c, std::size_t names, std::int64_t all) {
  const std::int64_t kv = c.n_kv_head * c.head_width();
  if (names == 3) return {c.n_head * c.head_width(), kv, kv};
  if (names == 2) return {all / 2, all / 2};
  return {all};
}

bool is_hf_llama(Dialect dialect) {
  return dialect == Dialect::hf_llama || dialect == Dialect::hf_post || dialect == Dialect::hf_phi3;
}

TensorPart part_of(const GptConfig& config, const Parameter& parameter, const OwnName& name,
                   const Table& table, const There& there) {
  TensorPart part;
  part.own = parameter.name;
  part.columns = columns_of(parameter.shape);
  part.transposed = there.form == Form::transposed && !name.bias;
  part.interleaved = there.form == Form::interleaved ? config.head_width() : 0;
  part.head_rows = there.form == Form::head_by_head ? config.head_width() : 0;
  const bool factors = &table == &kGgufQwen || &table == &kGgufLlama;
  if (factors && config.norm_offset && name.stem.ends_with("_norm") && !name.bias) part.added = 1;
  // The embedding tables of llm.c have names without a suffix.
  const bool bare = table.weight == "w" && name.stem.starts_with("embedding.");
  part.name = with_layer(there.name, name.layer) +
              std::string(bare ? "" : (name.bias ? table.bias : table.weight));
  return part;
}

void set_shape(TensorPart& part, const Shape& own, bool all_layers, std::int64_t layer,
               std::int64_t layers) {
  part.shape = {};
  if (all_layers) part.shape.append(layers);
  if (own.rank() == 1) {
    part.shape.append(part.rows);
  } else {
    part.shape.append(part.transposed ? part.columns : part.rows);
    part.shape.append(part.transposed ? part.rows : part.columns);
  }
  if (all_layers) part.first = layer * part.rows * part.columns;
}

}  // namespace

std::int64_t columns_of(const Shape& shape) {
  return shape.rank() == 1 ? 1 : shape.back();
}

ParameterSet described_parameters(const GptConfig& config) {
  ParameterSet parameters;
  const Gpt model(config, parameters);
  return parameters;
}

std::vector<TensorPart> tensor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect) {
  const Table& table = table_of(dialect);
  std::vector<TensorPart> parts;
  for (const Parameter* parameter : parameters.all()) {
    if (is_adapter(parameter->name)) continue;
    const OwnName name(parameter->name);
    const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                  [&](const Row& one) { return one.own == name.stem; });
    CHOIR_CHECK(row != table.rows.end(), "no name for {}", parameter->name);
    const std::int64_t all = parameter->shape[0];
    const auto rows = rows_for(config, row->there.size(), all);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const There& there = row->there[i];
      TensorPart part = part_of(config, *parameter, name, table, there);
      part.first_row = first;
      part.rows = rows[i];
      const bool all_layers = name.layer >= 0 && there.name.find(".N.") == std::string_view::npos;
      set_shape(part, parameter->shape, all_layers, name.layer, config.n_layer);
      first += rows[i];
      parts.push_back(std::move(part));
    }
    CHOIR_CHECK(first == all, "{} has {} rows, its parts {}", parameter->name, all, first);
  }
  const auto head = std::find_if(table.rows.begin(), table.rows.end(),
                                 [](const Row& one) { return one.own == "head"; });
  if (config.tied && head != table.rows.end()) {
    TensorPart copy = parts.front();
    copy.name = std::string(head->there[0].name) + std::string(table.weight);
    copy.repeated = true;
    parts.push_back(std::move(copy));
  }
  return parts;
}

bool repeats_head(Dialect dialect) {
  return table_of(dialect).repeats_head;
}

namespace {

/// Prefixes of trainers: the entry of a checkpoint that holds the model, and the classes that wrap
/// it (DistributedDataParallel, DeepSpeed, a merged model of PEFT).
constexpr std::string_view kWrappers[] = {
    "state_dict/", "model_state_dict/", "model/",           "module/",
    "module.",     "_forward_module.",  "base_model.model."};
/// The classes that wrap the model or its layers: torch.compile, FSDP, recomputed activations.
constexpr std::string_view kLayerWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                               "_checkpoint_wrapped_module."};

std::string unwrapped(std::string_view wrapped) {
  std::string name(wrapped);
  for (const std::string_view wrapper : kLayerWrappers)
    for (auto at = name.find(wrapper); at != name.npos; at = name.find(wrapper, at))
      if (at == 0 || name[at - 1] == '.' || name[at - 1] == '/')
        name.erase(at, wrapper.size());
      else
        at += wrapper.size();
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view wrapper : kWrappers)
      if (name.starts_with(wrapper)) name.erase(0, wrapper.size()), again = true;
  }
  return name;
}

bool begins_with_any(std::string_view name, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view one) { return name.starts_with(one); });
}

}  // namespace

std::string name_in_table(std::string_view wrapped, Dialect dialect) {
  const bool llama = is_hf_llama(dialect), neox = dialect == Dialect::hf_neox;
  if (!llama && !neox && dialect != Dialect::hf_gpt2 && dialect != Dialect::nanogpt)
    return std::string(wrapped);
  const std::string bare = unwrapped(wrapped);
  std::string_view name = bare;
  // A module of a trainer may hold the model as its member "model".
  const std::string_view inner = llama  ? "model.model."
                                 : neox ? "model.gpt_neox."
                                        : "model.transformer.";
  while (name.starts_with(inner) || begins_with_any(name, {"model.lm_head.", "model.embed_out."}))
    name.remove_prefix(6);
  if (neox && begins_with_any(name, {"layers.", "embed_in.", "final_layer_norm."}))
    return "gpt_neox." + std::string(name);
  if (dialect == Dialect::hf_gpt2 && begins_with_any(name, {"wte.", "wpe.", "h.", "ln_f."}))
    return "transformer." + std::string(name);
  if (llama && begins_with_any(name, {"layers.", "embed_tokens.", "norm."}))
    return "model." + std::string(name);
  return std::string(name);
}

bool is_no_weight(std::string_view name, Dialect dialect) {
  if (begins_with_any(name, {"optimizer/", "optimizer_state/", "optimizer_states/", "scheduler/",
                             "lr_scheduler/", "lr_schedulers/", "callbacks/", "loops/"}))
    return dialect == Dialect::nanogpt || dialect == Dialect::hf_gpt2 ||
           dialect == Dialect::hf_neox || is_hf_llama(dialect);
  switch (dialect) {
    case Dialect::nanogpt:  // beside the model: config/..., iter_num, best_val_loss
      return name.ends_with(".attn.bias") || name.find('/') != name.npos ||
             name.find('.') == name.npos;
    case Dialect::hf_gpt2:
      return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    case Dialect::hf_llama:
    case Dialect::hf_post:
    case Dialect::hf_phi3:
      return name.ends_with(".rotary_emb.inv_freq");
    case Dialect::hf_neox:  // old files have them
      return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attention.bias") ||
             name.ends_with(".attention.masked_bias");
    case Dialect::gguf_llama:
    case Dialect::gguf_qwen:
      return name == kGgufDivisors;  // read with the metadata
    case Dialect::gguf_phi3:
      return name == kGgufLongFactors || name == kGgufShortFactors;
    default:
      return false;
  }
}

std::vector<PartRun> runs_of(const TensorPart& part, std::int64_t first, std::int64_t rows) {
  const std::int64_t begin = std::max(first, part.first_row);
  const std::int64_t end = std::min(first + rows, part.first_row + part.rows);
  if (begin >= end) return {};
  const std::int64_t columns = part.columns, slab = (begin - first) * columns;
  const std::int64_t within = begin - part.first_row, count = end - begin;
  std::vector<PartRun> runs;
  if (part.transposed) {
    for (std::int64_t column = 0; column < columns; ++column)
      runs.push_back({part.first + column * part.rows + within, slab + column, count, columns});
  } else if (part.interleaved > 0) {
    const std::int64_t width = part.interleaved, half = width / 2;
    for (std::int64_t row = within; row < within + count; ++row) {
      const std::int64_t own = row % width;
      const std::int64_t there = row - own + (own < half ? 2 * own : 2 * (own - half) + 1);
      runs.push_back({part.first + there * columns, slab + (row - within) * columns, columns, 1});
    }
  } else if (part.head_rows > 0) {
    const std::int64_t width = part.head_rows, section = part.rows / 3;
    for (std::int64_t row = within; row < within + count;) {
      const std::int64_t now = std::min(width - row % width, within + count - row);
      const std::int64_t head = row % section / width, of_three = row / section;
      const std::int64_t there = (3 * head + of_three) * width + row % width;
      runs.push_back(
          {part.first + there * columns, slab + (row - within) * columns, now * columns, 1});
      row += now;
    }
  } else {
    runs.push_back({part.first + within * columns, slab, count * columns, 1});
  }
  return runs;
}

namespace {

/// Copies between elements `stride` apart in a slab and adjacent elements.
template <class Copy>
void over_strided(const PartRun& run, std::byte* slab, std::byte* packed, std::size_t width,
                  const Copy& copy) {
  for (std::int64_t i = 0; i < run.count; ++i)
    copy(slab + static_cast<std::size_t>(run.slab + i * run.stride) * width,
         packed + static_cast<std::size_t>(i) * width, width);
}

/// Adds a number to elements that the file has as f32 or f64.
void add_to(std::byte* data, DType dtype, std::int64_t count, double number) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (dtype == DType::f64)
      reinterpret_cast<double*>(data)[i] += number;
    else
      reinterpret_cast<float*>(data)[i] += static_cast<float>(number);
  }
}

void multiply(std::byte* data, DType dtype, std::int64_t count, double factor) {
  for (std::int64_t i = 0; factor != 1 && i < count; ++i) {
    if (dtype == DType::f64)
      reinterpret_cast<double*>(data)[i] *= factor;
    else
      reinterpret_cast<float*>(data)[i] *= static_cast<float>(factor);
  }
}

/// The type in which numbers of `dtype` are added.
DType addition_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace

std::int64_t read_part(const TensorReader& from, const std::string& name, const TensorPart& part,
                       const RowSlab& to, FiniteCheck& check) {
  const std::size_t width = size_of(to.dtype);
  std::vector<std::byte> packed;
  std::int64_t elements = 0;
  for (const PartRun& run : runs_of(part, to.first, to.rows)) {
    elements += run.count;
    if (run.stride == 1) {
      std::byte* const own = to.data + static_cast<std::size_t>(run.slab) * width;
      const DType type = part.added == 0 ? to.dtype : addition_type(to.dtype);
      if (type != to.dtype) {
        packed.resize(static_cast<std::size_t>(run.count) * size_of(type));
        from.read(name, run.there, run.count, packed.data(), type);
        add_to(packed.data(), type, run.count, -part.added);
        convert(packed.data(), encoding_of(type), own, encoding_of(to.dtype), run.count);
      } else {
        from.read(name, run.there, run.count, own, to.dtype);
        if (part.added != 0) add_to(own, type, run.count, -part.added);
      }
      check.look(name, own, to.dtype, run.count, run.there);
      continue;
    }
    packed.resize(static_cast<std::size_t>(run.count) * width);
    from.read(name, run.there, run.count, packed.data(), to.dtype);
    check.look(name, packed.data(), to.dtype, run.count, run.there);
    over_strided(run, to.data, packed.data(), width,
                 [](std::byte* own, const std::byte* there, std::size_t bytes) {
                   std::memcpy(own, there, bytes);
                 });
  }
  return elements;
}

void write_part(TensorWriter& to, const TensorPart& part, const RowSlab& from) {
  const std::size_t width = size_of(from.dtype);
  std::vector<std::byte> packed;
  for (const PartRun& run : runs_of(part, from.first, from.rows)) {
    const std::byte* data = from.data + static_cast<std::size_t>(run.slab) * width;
    if (run.stride != 1) {
      packed.resize(static_cast<std::size_t>(run.count) * width);
      over_strided(run, from.data, packed.data(), width,
                   [](const std::byte* own, std::byte* there, std::size_t bytes) {
                     std::memcpy(there, own, bytes);
                   });
      data = packed.data();
    }
    DType type = from.dtype;
    if (part.added != 0 || part.factor != 1) {
      type = addition_type(from.dtype);
      std::vector<std::byte> sums(static_cast<std::size_t>(run.count) * size_of(type));
      convert(data, encoding_of(from.dtype), sums.data(), encoding_of(type), run.count);
      add_to(sums.data(), type, run.count, part.added);
      multiply(sums.data(), type, run.count, part.factor);
      packed = std::move(sums);
      data = packed.data();
    }
    to.write(part.name, run.there, run.count, data, type);
  }
}

}  // namespace choir
