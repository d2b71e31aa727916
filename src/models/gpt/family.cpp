// GptFamily: its keys in the deck, the fields of its micro-batches, and its runs.

#include "src/models/gpt/family.hpp"
#include "src/core/quantities.hpp"

#include "choir/core/error.hpp"
#include "choir/nn/layers/feed_forward.hpp"
#include "choir/run/model_instance.hpp"
#include "kernels/attention/attention.hpp"
#include "src/core/hints.hpp"
#include "src/core/text.hpp"
#include "src/data/sampling/blend.hpp"
#include "src/models/gpt/chat_data.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/token_data.hpp"

namespace choir {
namespace {

// Limits far above any model: a typing error is refused at once, and products of sizes do not
// overflow.
constexpr double kMostLayers = 10'000;
constexpr double kMostWidth = 1 << 20;
constexpr double kMostRank = 1 << 16;
constexpr double kMostTokens = 1 << 30;  // BLAS counts rows and columns with 32 bits

using DecoderTable = KeyTable<GptConfig>;

void add_rope_keys(DecoderTable& table) {
  using ops::RopeScaling;
  auto rope = table.section("", &GptConfig::rope_scaling);
  rope.add("rope_scaling", &RopeScaling::kind, "",
           "Scaling of rotary frequencies for sequences longer than those of the first training: "
           "linear divides all of them by rope_factor, llama3 and yarn those of long waves, and "
           "longrope each by a factor of its own.");
  rope.add("rope_factor", &RopeScaling::factor, "",
           "Factor by which rope_scaling divides frequencies. longrope: the longest sequence over "
           "rope_original, from which only the factor of queries and keys follows.")
      .at_least(1);
  rope.add("rope_original", &RopeScaling::original, "tokens",
           "Length of sequences in the first training (llama3, yarn and longrope).")
      .at_least(0)
      .only_with("rope_scaling", {"llama3", "yarn", "longrope"});
  rope.add("rope_low_factor", &RopeScaling::low, "",
           "Wavelengths longer than rope_original / rope_low_factor are scaled (llama3).")
      .above(0)
      .only_with("rope_scaling", {"llama3"});
  rope.add("rope_high_factor", &RopeScaling::high, "",
           "Wavelengths shorter than rope_original / rope_high_factor are not scaled (llama3).")
      .above(0)
      .only_with("rope_scaling", {"llama3"});
  rope.add("rope_beta_fast", &RopeScaling::beta_fast, "turns",
           "Pairs with more turns than this within rope_original are not scaled (yarn).")
      .above(0)
      .only_with("rope_scaling", {"yarn"});
  rope.add("rope_beta_slow", &RopeScaling::beta_slow, "turns",
           "Pairs with fewer turns than this within rope_original are scaled fully (yarn).")
      .above(0)
      .only_with("rope_scaling", {"yarn"});
  rope.add("rope_truncate", &RopeScaling::truncate, "",
           "Round the two pairs between which scaling sets in to whole ones (yarn).")
      .only_with("rope_scaling", {"yarn"});
  rope.add("rope_attention_factor", &RopeScaling::attention_factor, "",
           "Factor of rotated queries and keys (yarn and longrope). 0: 0.1 ln(rope_factor) + 1 "
           "for yarn, sqrt(1 + ln(rope_factor) / ln(rope_original)) for longrope.")
      .at_least(0)
      .only_with("rope_scaling", {"yarn", "longrope"});
  auto gpt = table.top();
  const auto check_factors = [](const KeyValue& value) -> std::string {
    const auto numbers = rope_factors(std::get<std::vector<std::string>>(value));
    return std::ranges::count(numbers, 0.0) == 0 ? "" : "numbers above 0";
  };
  gpt.add("rope_short_factors", &GptConfig::rope_short_factors, "",
          "Divisors of the frequencies, one for each pair that rotates, if block_size is at most "
          "rope_original (longrope).")
      .or_json()
      .checked("numbers above 0", check_factors)
      .only_with("rope_scaling", {"longrope"});
  gpt.add("rope_long_factors", &GptConfig::rope_long_factors, "",
          "Divisors of the frequencies, one for each pair that rotates, if block_size is above "
          "rope_original (longrope). They then hold for short sequences, too.")
      .or_json()
      .checked("numbers above 0", check_factors)
      .only_with("rope_scaling", {"longrope"});
}

void add_model_keys(DecoderTable& table) {
  auto gpt = table.top();
  gpt.add("rope_scaling_layers", &GptConfig::rope_scaling_layers, "",
          "Layers to which rope_scaling applies: all, or full, those without a window (Gemma 3).");
  gpt.add("n_layer", &GptConfig::n_layer, "", "Number of blocks.").at_least(1).at_most(kMostLayers);
  gpt.add("n_head", &GptConfig::n_head, "", "Number of attention heads. Must divide n_embd.")
      .at_least(1)
      .at_most(kMostWidth);
  gpt.add("n_kv_head", &GptConfig::n_kv_head, "",
          "Heads of keys and values (grouped-query attention). Must divide n_head. 0: n_head.")
      .at_least(0);
  gpt.add("n_embd", &GptConfig::n_embd, "", "Width of the residual stream.")
      .at_least(1)
      .at_most(kMostWidth);
  gpt.add("head_width", &GptConfig::own_head_width, "", "Width of a head. 0: n_embd / n_head.")
      .at_least(0)
      .at_most(static_cast<double>(ops::kWidestHead));
  gpt.add("block_size", &GptConfig::block_size, "tokens", "Length of a training sequence.")
      .at_least(1)
      .at_most(kMostTokens);
  gpt.add("vocab_size", &GptConfig::vocab_size, "tokens",
          "Size of the vocabulary. 0: that of the data. Required with data.format = synthetic.")
      .at_least(0)
      .at_most(kMostTokens);
  gpt.add(
         "ffn_width", &GptConfig::ffn_width, "",
         "Width of the feed-forward layer. 0: 4 n_embd; for swiglu and geglu 8/3 n_embd rounded up "
         "to 64.")
      .at_least(0)
      .at_most(16 * kMostWidth);
  gpt.add("tile", &GptConfig::tile, "",
          "Memory-centric tiling: number of tiles of ffn_width in which the feed-forward layer of "
          "each "
          "block is run. Each tile has its own bucket of parameters; with parallel.zero = 3 only "
          "one "
          "tile and those gathered ahead are whole. Must divide ffn_width / parallel.tensor. Only "
          "the "
          "order of summation changes; checkpoints are unaffected.")
      .at_least(1)
      .at_most(FeedForward::kMostTiles)
      .when_resumed(OnResume::free);
  gpt.add("bias", &GptConfig::bias, "", "Use biases in linear layers and LayerNorm.");
  gpt.add("qkv_bias", &GptConfig::qkv_bias, "",
          "Biases of queries, keys and values (the only ones of Qwen2). auto: like bias.");
  gpt.add("norm_bias", &GptConfig::norm_bias, "", "Biases of LayerNorm. auto: like bias.");
  gpt.add("dropout", &GptConfig::dropout, "probability",
          "Dropout of embeddings and of both outputs of each block.")
      .at_least(0)
      .below(1);
  gpt.add("tied", &GptConfig::tied, "", "Share one matrix between head and token embedding.");
  gpt.add("z_loss", &GptConfig::z_loss, "",
          "Weight z of the auxiliary loss z lse^2, where lse is the logarithm of the sum of "
          "exponentials of the logits (PaLM: 1e-4). It keeps logits from drifting together. The "
          "log and the evaluation show its mean as z_loss beside that of the cross-entropy "
          "(token_loss); loss and val_loss are the weighted sum. 0: none.")
      .at_least(0);
  gpt.add("norm", &GptConfig::norm, "", "Normalisation.");
  gpt.add("norm_eps", &GptConfig::norm_eps, "", "Constant added to the variance.").above(0);
  gpt.add("norm_offset", &GptConfig::norm_offset, "",
          "Norms multiply by 1 + weight, and weights start at 0 (Gemma).");
  gpt.add("norm_place", &GptConfig::norm_place, "",
          "Norms of a block: in front of both branches (pre), behind them (post: OLMo 2), or both "
          "(Gemma 2).");
  gpt.add("parallel_branches", &GptConfig::parallel_branches, "",
          "Attention and the feed-forward layer of a block both read its input, each through its "
          "own norm, and their outputs are added to it together (GPT-NeoX).");
  gpt.add("activation", &GptConfig::activation, "",
          "Nonlinearity of the feed-forward layer; gelu is the exact (erf) form, and geglu has the "
          "tanh form in its gate.");
  gpt.add("embedding_scale", &GptConfig::embedding_scale, "",
          "Factor of the embedding, rounded to the element type (Gemma: sqrt(n_embd)).")
      .above(0);
  gpt.add("residual_scale", &GptConfig::residual_scale, "",
          "Factor of the outputs of both branches of a block (Granite).")
      .above(0);
  gpt.add("logit_scale", &GptConfig::logit_scale, "", "Factor of the logits (Granite).").above(0);
  gpt.add("logit_softcap", &GptConfig::logit_softcap, "",
          "Soft cap c of the logits z, after their factor: c tanh(z / c) (Gemma 2: 30). 0: none.")
      .at_least(0);
  gpt.add("position", &GptConfig::position, "", "Positions: a learned table, or rotary embedding.");
  gpt.add("rope_width", &GptConfig::rope_width, "",
          "First features of a head that rotate (GPT-NeoX: a quarter of them). Must be even. 0: "
          "all.")
      .at_least(0)
      .at_most(static_cast<double>(ops::kWidestHead));
  gpt.add("rope_theta", &GptConfig::rope_theta, "", "Base of the rotary wavelengths.").above(0);
  gpt.add("rope_local_theta", &GptConfig::rope_local_theta, "",
          "Base of the rotary wavelengths in layers with a window (Gemma 3: 10000). 0: rope_theta.")
      .at_least(0);
  gpt.add("rope_skip_interval", &GptConfig::rope_skip_interval, "layers",
          "One layer in this many does not rotate (SmolLM3: 4). 0: all layers do.")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("qk_norm", &GptConfig::qk_norm, "",
          "Apply RMSNorm to queries and keys before rotary positions (Qwen3).");
  gpt.add(
      "qk_norm_span", &GptConfig::qk_norm_span, "",
      "Features that qk_norm normalises together: those of a head (Qwen3), or the whole width of "
      "queries and of keys (OLMo 2), for which tensor ranks sum their squares.");
  gpt.add("attention_scale", &GptConfig::attention_scale, "",
          "Factor of attention scores. 0: 1 / sqrt(head width).")
      .at_least(0);
  gpt.add("attention_softcap", &GptConfig::attention_softcap, "",
          "Soft cap c of scaled attention scores s, before the mask: c tanh(s / c) (Gemma 2: 50). "
          "cuDNN's attention and the AMX tiles have none. 0: none.")
      .at_least(0);
  gpt.add("attention_window", &GptConfig::window, "tokens",
          "Sliding window: positions that a query sees, including its own. 0: all.")
      .at_least(0)
      .at_most(kMostTokens);
  gpt.add("window_first_layer", &GptConfig::window_first_layer, "layers",
          "Number of first layers without a window (Qwen2's max_window_layers).")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("window_skip_interval", &GptConfig::window_skip_interval, "layers",
          "One layer in this many has no window (Gemma 2: 2, Gemma 3: 6). 0: all layers have one.")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("attention", &GptConfig::attention, "",
          "Attention kernel: own, or cuDNN's on device cuda (an error if cuDNN refuses the shape). "
          "auto uses cuDNN if it supports the shape.")
      .when_resumed(OnResume::free);
  gpt.add("attention_deterministic", &GptConfig::attention_deterministic, "",
          "Use cuDNN's deterministic attention backward, as train.reproducible = true does. It is "
          "slower and stores B H T T numbers per layer. The own kernels are always deterministic.")
      .when_resumed(OnResume::free);
  gpt.add("gelu_in_product", &GptConfig::gelu_in_product, "",
          "Compute the exact GELU and its derivative in kernels that also compute the products "
          "beside them, on a GPU of sm_90 in 16 bits. Nobody has measured yet if that is faster "
          "than cuBLASLt's products.")
      .only_with("activation", {"gelu"})
      .when_resumed(OnResume::free);
}

/// Returns "" if all are legal targets without repetition.
std::string wrong_target(const std::vector<std::string>& targets) {
  std::vector<std::string> legal(std::begin(kLoraTargets), std::end(kLoraTargets));
  legal.emplace_back("all");
  std::set<std::string> seen;
  for (const std::string& target : targets) {
    if (std::find(legal.begin(), legal.end(), target) == legal.end())
      return fmt::format("there is no target \"{}\"; nearest legal: \"{}\"", target,
                         nearest_name(target, legal));
    if (!seen.insert(target).second) return fmt::format("\"{}\" is given twice", target);
  }
  if (targets.empty()) return "no target is given; legal: [\"all\"]";
  if (seen.contains("all") && seen.size() > 1) return "\"all\" includes the others";
  return {};
}

void add_lora_keys(DecoderTable& table) {
  auto lora = table.section("", &GptConfig::lora);
  lora.add("lora.rank", &Lora::rank, "",
           "Inner width of low-rank adapters (Hu et al. 2021): a product B A beside each target W "
           "is "
           "trained, and everything else is frozen, except train.unfreeze. 0: no adapters.")
      .at_least(0)
      .at_most(kMostRank);
  lora.add("lora.alpha", &Lora::alpha, "",
           "Scale of the adapters: B A is multiplied by alpha / rank.")
      .above(0);
  lora.add("lora.dropout", &Lora::dropout, "probability",
           "Dropout of the input of adapters. Frozen layers see the whole input.")
      .at_least(0)
      .below(1);
  lora.add("lora.rank_stabilised", &Lora::rank_stabilised, "",
           "Multiply B A by alpha / sqrt(rank) instead (rsLoRA, Kalajdzievski 2023).");
  lora.add(
          "lora.targets", &Lora::targets, "",
          "Linear layers of the blocks that have adapters: q, k, v, o, gate (of swiglu and geglu), "
          "up, down, or all.")
      .checked("q | k | v | o | gate | up | down | all", [](const KeyValue& value) {
        return wrong_target(std::get<std::vector<std::string>>(value));
      });
}

void add_run_keys(KeyTable<GptSettings>& table) {
  const auto itself = [](GptSettings& settings) -> GptSettings& { return settings; };
  auto data = table.section<GptSettings>("data", itself);
  data.add("tokenizer", &GptSettings::tokenizer, "",
           "Tokens of text that is prepared on first use or encoded on the fly: char (the "
           "characters "
           "of the text), byte, or the file of a tokenizer (tokenizer.json, tokenizer.model).")
      .checked("char | byte | FILE", [](const KeyValue& value) {
        const auto& name = std::get<std::string>(value);
        if (name.starts_with("bpe"))
          return std::string(
              "a byte-pair encoding is trained before the run: `choir prepare text FILES --out "
              "data/NAME --tokenizer bpe --vocab-size 8192`, then data.train=[\"data/NAME\"]");
        const bool is_file = name.find_first_of("./") != std::string::npos;
        return is_file || name == "char" || name == "byte"
                   ? std::string()
                   : fmt::format(
                         "'{}' is neither char nor byte nor the name of a file{}", name,
                         advice_on_hub_name(name).empty() ? "" : "; " + advice_on_hub_name(name));
      });
  data.add("text_field", &GptSettings::text_field, "",
           "Field of JSON lines, or column of Parquet, that holds the text.")
      .when_resumed(OnResume::same_contents);
  data.add("on_the_fly", &GptSettings::on_the_fly, "",
           "Encode the texts of data.train while training, without a prepared copy. Their units (a "
           "row group of Parquet, a packed file, a tar, a span of a plain file) are permuted in "
           "each epoch, and the documents of a unit keep their order. No part of the text is "
           "reserved for validation: name data.val.")
      .when_resumed(OnResume::same_contents);
  data.add("text_threads", &GptSettings::text_threads, "threads",
           "Threads of each rank that encode texts ahead, for data.on_the_fly.")
      .at_least(1)
      .at_most(64)
      .when_resumed(OnResume::free);
  data.add("val_fraction", &GptSettings::val_fraction, "",
           "Fraction at the end of a text that preparation reserves for validation.")
      .at_least(0)
      .below(1);
  data.add("documents", &GptSettings::documents, "",
           "Documents in rows of tokens. separate: attention and learned positions begin anew with "
           "each document, and its last token has no target, so that its loss is the same as "
           "alone; the loss is divided by the remaining targets. ignore: a row is one text.")
      .one_of({"ignore", "separate"});
  data.add("document_end", &GptSettings::document_end, "token",
           "The token that ends a document, for data.documents = separate. -1: the end of text of "
           "the vocabulary beside the data, and token 0 of random tokens. Where there is an .idx "
           "of Megatron-LM, its documents are separate in any case.")
      .at_least(-1)
      .at_most(kMostTokens);
  add_blend_keys(
      table.section<BlendSection>("data", [](GptSettings& all) -> BlendSection& { return all; }));
  table.section("data", &GptSettings::model)
      .add("pack", &GptConfig::packed, "",
           "Pack conversations: as many in a row of block_size as fit, first fit in the order of "
           "training. Attention stays within a conversation and its learned positions start at 0, "
           "so "
           "that its loss is the same as alone. A sample is then a row.");
  auto train = table.section("train", &GptSettings::model);
  train
      .add("label_smoothing", &GptConfig::label_smoothing, "",
           "Share of each target that is spread evenly over the vocabulary (Szegedy et al. 2016). "
           "Only the training loss uses it; the validation loss is the plain cross-entropy.")
      .at_least(0)
      .below(1);
  auto eval = table.section<GptSettings>("eval", itself);
  eval.add(
          "batches", &GptSettings::eval_batches, "global batches",
          "Number of validation batches per evaluation, from the first on, of each set; `choir "
          "eval` uses the same. The default keeps an evaluation short, and its loss is that of the "
          "beginning of a longer set. all, or 0: the whole validation data. Random tokens have 8 "
          "micro-batches unless this key is given.")
      .or_word("all", 0)
      .at_least(0);
  eval.add("sample_tokens", &GptSettings::sample_tokens, "tokens",
           "Length of the text generated at each evaluation. 0: none.")
      .at_least(0);
  eval.add("sample_prompt", &GptSettings::sample_prompt, "", "Beginning of the generated text.")
      .not_with("sample_tokens", {"0"});
  eval.add("sample_temperature", &GptSettings::sample_temperature, "",
           "Divides the logits. 0: always the most likely token.")
      .at_least(0)
      .not_with("sample_tokens", {"0"});
  eval.add("sample_top_k", &GptSettings::sample_top_k, "tokens",
           "Sample from the top k tokens only. 0: from all.")
      .at_least(0)
      .not_with("sample_tokens", {"0"});
}

}  // namespace

const KeyTable<GptConfig>& decoder_keys() {
  static const DecoderTable kTable = [] {
    DecoderTable table;
    add_model_keys(table);
    add_rope_keys(table);
    add_lora_keys(table);
    return table;
  }();
  return kTable;
}

const KeyTable<GptConfig>& head_keys() {
  static const DecoderTable kTable = [] {
    DecoderTable table;
    table.top()
        .add("head_chunk", &GptConfig::head_chunk, "rows",
             "Rows of a micro-batch whose logits and loss are computed together, forward and "
             "backward, so that the logits of all rows are never in memory. Only the order of "
             "summation of the head's gradient depends on it. auto: as many as have 256 MiB of "
             "logits over the whole vocabulary, at least 1024, whatever the layout; if the memory "
             "of a rank does not suffice, a half, a quarter ... of them, at least 128, but not "
             "with train.reproducible. 0: all rows.")
        .or_word("auto", GptConfig::kAutoChunk)
        .at_least(0)
        .at_most(kMostTokens)
        .when_resumed(OnResume::free);
    return table;
  }();
  return kTable;
}

namespace {

const KeyTable<GptConfig>& tile_keys() {
  static const DecoderTable kTable = [] {
    DecoderTable table;
    table.top()
        .add("attention_chunk", &GptConfig::attention_chunk, "positions",
             "Positions of a sequence that the attention of a block projects and attends to at a "
             "time, forward and backward. Queries, keys, values and outputs are not kept: backward "
             "computes them again from the input of the attention, for the time of a second "
             "forward of the attention. Only the order of summation of gradients depends on it. 0: "
             "all at once, and kept.")
        .at_least(0)
        .at_most(kMostTokens)
        .when_resumed(OnResume::free);
    return table;
  }();
  return kTable;
}

}  // namespace

const KeySet& GptFamily::keys() const {
  static const KeyTable<GptSettings> kTable = [] {
    KeyTable<GptSettings> table;
    table.include<GptConfig>(decoder_keys(), "model",
                             [](GptSettings& all) -> GptConfig& { return all.model; });
    table.include<GptConfig>(head_keys(), "train",
                             [](GptSettings& all) -> GptConfig& { return all.model; });
    table.include<GptConfig>(tile_keys(), "train",
                             [](GptSettings& all) -> GptConfig& { return all.model; });
    add_run_keys(table);
    return table;
  }();
  return kTable;
}

void derive_decoder(Deck& deck, GptConfig& gpt, const std::string& section) {
  if (gpt.n_kv_head == 0) {
    gpt.n_kv_head = gpt.n_head;
    deck.mark_derived(section + ".n_kv_head");
  }
  if (gpt.ffn_width == 0) {
    gpt.ffn_width = default_ffn_width(gpt);
    deck.mark_derived(section + ".ffn_width");
  }
}

void GptFamily::derive(Deck& deck) const {
  derive_decoder(deck, deck.families.of<GptSettings>().model, "model");
}

ModelConfig GptFamily::model(const Deck& deck) const {
  GptConfig config = gpt_of(deck);
  config.packed = config.packed || separates_documents(deck);
  return config;
}

std::int64_t& GptFamily::vocab_size(Deck& deck) const {
  return deck.families.of<GptSettings>().model.vocab_size;
}

void add_z_loss(double z_loss, std::vector<LossTerm>& terms) {
  if (z_loss > 0)
    terms.push_back({.name = "z_loss", .weight = z_loss * terms.front().weight, .counts_as = 0});
}

std::vector<LossTerm> token_loss_terms(const GptConfig& config) {
  std::vector<LossTerm> terms{{.name = config.z_loss > 0 ? "token_loss" : "loss"}};
  add_z_loss(config.z_loss, terms);
  return terms;
}

std::vector<LossTerm> GptFamily::loss_terms(const ModelConfig& config) const {
  return token_loss_terms(config.as<GptConfig>());
}

ModelBatch token_batch(std::int64_t samples, const TensorView& inputs, const TensorView& targets,
                       std::int64_t first_sample) {
  ModelBatch batch;
  batch.samples = samples;
  batch.tokens = inputs.count() / samples;
  batch.first_sample = first_sample;
  batch.add({.name = "inputs", .view = inputs, .shared = Shared::positions, .padding = 0});
  if (targets.shape.rank() > 0)
    batch.add({.name = "targets",
               .view = targets,
               .shared = Shared::positions,
               .padding = kIgnoredTarget});
  return batch;
}

void add_documents(ModelBatch& batch, const TensorView& begins, const TensorView& positions) {
  batch.add({.name = kDocumentBegins, .view = begins});
  batch.add({.name = kDocumentPositions, .view = positions, .shared = Shared::positions});
}

const ModelFamily& gpt_family() {
  static const GptFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const GptConfig&) {
  return gpt_family();
}

HeadChunk GptFamily::head_chunk(const ModelConfig& config, DType logits) const {
  return DecoderTower::chunk_of_head(config.as<GptConfig>(), logits);
}

AttentionTiles GptFamily::attention_tiles(const ModelConfig& config) const {
  const auto& c = config.as<GptConfig>();
  if (c.attention_chunk == 0) return {};
  return {.positions = c.attention_chunk,
          .elements = 2 * (c.attention_width() + c.n_kv_head * c.head_width()),
          .heads = c.n_head};
}

void GptFamily::limit_head_chunk(ModelConfig& config, std::int64_t rows) const {
  config.as<GptConfig>().head_chunk_limit = rows;
}

UnitCosts GptFamily::unit_costs(const ModelConfig& config) const {
  const auto& gpt = config.as<GptConfig>();
  return Gpt::unit_costs(gpt, gpt.block_size);
}

std::vector<TiedNames> GptFamily::tied(const ModelConfig& config) const {
  if (!config.as<GptConfig>().tied) return {};
  return {{.name = "embedding.tokens.weight", .alias = "head.weight"}};
}

std::vector<KeyProblem> GptFamily::check_tensor_size(const ModelConfig& config,
                                                     std::int64_t ranks) const {
  return choir::check_tensor_size(config.as<GptConfig>(), ranks);
}

std::int64_t GptFamily::query_heads(const ModelConfig& config) const {
  return config.as<GptConfig>().n_head;
}

std::string GptFamily::describe(const ModelConfig& config) const {
  const auto& gpt = config.as<GptConfig>();
  return fmt::format(
      "{} of {}, {} ({} of keys and values), vocabulary {}, blocks of {}, dropout {}, {}",
      counted(gpt.n_layer, "layer"), gpt.n_embd, counted(gpt.n_head, "head"), gpt.n_kv_head,
      gpt.vocab_size, gpt.block_size, gpt.dropout, gpt.tied ? "tied" : "not tied");
}

BatchShape GptFamily::shape(const ModelConfig& config, std::int64_t samples) const {
  return {.samples = samples, .tokens = config.as<GptConfig>().block_size};
}

ModelBatch GptFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  const TensorView tokens{nullptr, DType::i32, {shape.samples * shape.tokens}};
  ModelBatch batch = token_batch(shape.samples, tokens, tokens);
  if (config.as<GptConfig>().packed) add_documents(batch, tokens, tokens);
  return batch;
}

ops::BenchShape GptFamily::op_shape(const ModelConfig& config, const BatchShape& shape) const {
  return DecoderTower::op_shape(config.as<GptConfig>(), shape);
}

namespace {

void refuse_documents_of_chat(const Deck& deck) {
  if (separates_documents(deck))
    throw DataError("data.documents = \"separate\" is for texts, and these data are conversations",
                    "data.pack = true packs conversations, which then do not see each other");
}

void refuse_resident_chat(const Deck& deck) {
  if (deck.data.preload == Preload::device)
    throw DeckError(
        "data.preload = \"device\" is for windows of tokens and for audio: the rows of "
        "conversations, with their masks, are composed by the host",
        "set data.preload to \"none\"");
}

}  // namespace

std::unique_ptr<TrainingData> GptFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                   Mesh& mesh, Logger& log) const {
  if (trains_on_chat(deck, mesh)) {
    refuse_documents_of_chat(deck);
    refuse_resident_chat(deck);
    return std::make_unique<ChatTrainingData>(deck, batch, mesh, log);
  }
  return std::make_unique<TokenTrainingData>(deck, batch, mesh, log);
}

std::unique_ptr<EvaluationData> GptFamily::open_evaluation(const Deck& deck,
                                                           const std::string& vocabulary,
                                                           Mesh& mesh, Logger& log) const {
  if (trains_on_chat(deck, mesh, true)) {
    refuse_documents_of_chat(deck);
    return std::make_unique<ChatEvaluationData>(deck, vocabulary, mesh, log);
  }
  return std::make_unique<TokenEvaluationData>(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> GptFamily::synthetic_batches(const ModelConfig& config,
                                                               std::uint64_t seed,
                                                               std::int64_t samples) const {
  const auto& gpt = config.as<GptConfig>();
  return std::make_unique<SyntheticTokens>(seed, samples, gpt.block_size, gpt.vocab_size,
                                           gpt.packed);
}

std::unique_ptr<BenchBatches> GptFamily::bench_batches(const Deck& deck, const BatchSizes& batch,
                                                       Mesh& mesh, Logger& log,
                                                       const BenchAudio&) const {
  return std::make_unique<TokenBenchBatches>(deck, batch, mesh, log);
}

bool GptFamily::writes_samples(const Deck& deck) const {
  return gpt_settings(deck).sample_tokens > 0;
}

void GptFamily::sample_once(ModelInstance& instance) const {
  Generator(instance).plan(1);
}

}  // namespace choir
