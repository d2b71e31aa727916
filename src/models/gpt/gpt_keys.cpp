// GptFamily: the keys that the deck has for it.
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "choir/data/speech/speech_blend.hpp"
#include "choir/models/gpt/gpt_settings.hpp"
#include "choir/nn/layers/feed_forward.hpp"
#include "choir/ops/attention.hpp"
#include "src/models/gpt/gpt_family.hpp"

namespace choir {
namespace {

// Far above any model: a slip of the finger is refused at once, and sizes multiply without
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
           "Lower rotary frequencies for sequences longer than those of the first training: linear "
           "divides all by rope_factor, llama3 and yarn those of long waves.")
      .one_of({"none", "linear", "llama3", "yarn"});
  rope.add("rope_factor", &RopeScaling::factor, "", "What rope_scaling divides frequencies by.")
      .at_least(1);
  rope.add("rope_original", &RopeScaling::original, "tokens",
           "llama3 and yarn: the length of sequences in the first training.")
      .at_least(0);
  rope.add("rope_low_factor", &RopeScaling::low, "",
           "llama3: waves longer than rope_original / this are divided.")
      .above(0);
  rope.add("rope_high_factor", &RopeScaling::high, "",
           "llama3: waves shorter than rope_original / this stay.")
      .above(0);
  rope.add("rope_beta_fast", &RopeScaling::beta_fast, "turns",
           "yarn: pairs that turn more often within rope_original stay.")
      .above(0);
  rope.add("rope_beta_slow", &RopeScaling::beta_slow, "turns",
           "yarn: pairs that turn less often within rope_original are divided.")
      .above(0);
  rope.add("rope_truncate", &RopeScaling::truncate, "",
           "yarn: the pairs between which the division sets in are rounded to whole ones.");
  rope.add("rope_attention_factor", &RopeScaling::attention_factor, "",
           "yarn: multiplies rotated queries and keys. 0: 0.1 ln(rope_factor) + 1.")
      .at_least(0);
}

void add_model_keys(DecoderTable& table) {
  auto gpt = table.top();
  gpt.add("n_layer", &GptConfig::n_layer, "", "Blocks.").at_least(1).at_most(kMostLayers);
  gpt.add("n_head", &GptConfig::n_head, "", "Attention heads. Divides n_embd.")
      .at_least(1)
      .at_most(kMostWidth);
  gpt.add("n_kv_head", &GptConfig::n_kv_head, "",
          "Heads of keys and values (grouped-query attention). Divides n_head. 0: n_head.")
      .at_least(0);
  gpt.add("n_embd", &GptConfig::n_embd, "", "Width of the residual stream.")
      .at_least(1)
      .at_most(kMostWidth);
  gpt.add("head_width", &GptConfig::own_head_width, "",
          "Width of a head where it is not n_embd / n_head, which 0 means.")
      .at_least(0)
      .at_most(static_cast<double>(ops::kWidestHead));
  gpt.add("block_size", &GptConfig::block_size, "tokens", "Length of a training sequence.")
      .at_least(1)
      .at_most(kMostTokens);
  gpt.add("vocab_size", &GptConfig::vocab_size, "tokens",
          "Size of the vocabulary. 0: that of the data. With data.format synthetic it must be "
          "given.")
      .at_least(0)
      .at_most(kMostTokens);
  gpt.add("ffn_width", &GptConfig::ffn_width, "",
          "Width of the feed-forward layer. 0: 4 n_embd; for swiglu 8/3 n_embd rounded up to 64.")
      .at_least(0)
      .at_most(16 * kMostWidth);
  gpt.add(
         "tile", &GptConfig::tile, "",
         "Memory-centric tiling: the feed-forward layer of each block is run in this many tiles of "
         "ffn_width, each with a bucket of parameters of its own; with parallel.zero = 3 only one "
         "tile and those gathered ahead are whole. Divides ffn_width / parallel.tensor. Sums are "
         "in another order, nothing else changes, also no checkpoint.")
      .at_least(1)
      .at_most(FeedForward::kMostTiles)
      .when_resumed(OnResume::free);
  gpt.add("bias", &GptConfig::bias, "", "Biases in linear layers and LayerNorm.");
  gpt.add("qkv_bias", &GptConfig::qkv_bias, "",
          "Biases of queries, keys and values (Qwen2 has these alone). auto: as bias.")
      .one_of({"auto", "yes", "no"});
  gpt.add("norm_bias", &GptConfig::norm_bias, "", "Biases of LayerNorm. auto: as bias.")
      .one_of({"auto", "yes", "no"});
  gpt.add("dropout", &GptConfig::dropout, "probability",
          "Dropout of embeddings and of both outputs of each block.")
      .at_least(0)
      .below(1);
  gpt.add("tied", &GptConfig::tied, "", "The head shares the token embedding.");
  gpt.add("norm", &GptConfig::norm, "", "Normalisation.").one_of({"layernorm", "rmsnorm"});
  gpt.add("norm_eps", &GptConfig::norm_eps, "", "Added to the variance.").above(0);
  gpt.add("activation", &GptConfig::activation, "",
          "Nonlinearity of the feed-forward layer; gelu is the exact (erf) form.")
      .one_of({"gelu", "gelu_tanh", "relu", "swiglu", "silu"});
  gpt.add("position", &GptConfig::position, "", "Learned table, or rotary embedding.")
      .one_of({"learned", "rope"});
  gpt.add("rope_theta", &GptConfig::rope_theta, "", "Base of the rotary wavelengths.").above(0);
  gpt.add("rope_skip_interval", &GptConfig::rope_skip_interval, "layers",
          "One layer in this many does not rotate (SmolLM3: 4). 0: all layers do.")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("qk_norm", &GptConfig::qk_norm, "",
          "RMSNorm of every head of queries and keys before positions (Qwen3).");
  gpt.add("attention_window", &GptConfig::window, "tokens",
          "Sliding window: how many positions a query sees, the last one its own. 0: all.")
      .at_least(0)
      .at_most(kMostTokens);
  gpt.add("window_first_layer", &GptConfig::window_first_layer, "layers",
          "How many layers at the start have no window (Qwen2's max_window_layers).")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("window_skip_interval", &GptConfig::window_skip_interval, "layers",
          "One layer in this many has no window (Gemma 2: 2, Gemma 3: 6). 0: all have.")
      .at_least(0)
      .at_most(kMostLayers);
  gpt.add("attention", &GptConfig::attention, "",
          "Attention kernel: own, or cuDNN's on device cuda (an error where it refuses the shape); "
          "auto takes cuDNN where it can.")
      .one_of({"auto", "own", "cudnn"})
      .when_resumed(OnResume::free);
  gpt.add("attention_deterministic", &GptConfig::attention_deterministic, "",
          "Backward of cuDNN's attention gives the same bits each time, as it does with "
          "train.reproducible = true: slower, and it keeps B H T T numbers of a layer. Own kernels "
          "always do.")
      .when_resumed(OnResume::free);
}

/// "" where all are targets, once each.
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
  if (seen.contains("all") && seen.size() > 1) return "\"all\" has the others already";
  return {};
}

void add_lora_keys(DecoderTable& table) {
  auto lora = table.section("", &GptConfig::lora);
  lora.add("lora.rank", &Lora::rank, "",
           "Low-rank adapters (Hu et al. 2021): beside each target W a product B A of this inner "
           "width is trained, and all else is frozen, but for train.unfreeze. 0: none.")
      .at_least(0)
      .at_most(kMostRank);
  lora.add("lora.alpha", &Lora::alpha, "", "B A counts for alpha / rank of itself.").above(0);
  lora.add("lora.dropout", &Lora::dropout, "probability",
           "Dropout of what adapters read. The frozen layers read all of it.")
      .at_least(0)
      .below(1);
  lora.add("lora.rank_stabilised", &Lora::rank_stabilised, "",
           "B A counts for alpha / sqrt(rank) of itself (rsLoRA, Kalajdzievski 2023).");
  lora.add("lora.targets", &Lora::targets, "",
           "Linear layers of the blocks that have adapters: q, k, v, o, gate (of swiglu), up, "
           "down, or all.")
      .checked("q | k | v | o | gate | up | down | all", [](const KeyValue& value) {
        return wrong_target(std::get<std::vector<std::string>>(value));
      });
}

void add_run_keys(KeyTable<GptSettings>& table) {
  const auto itself = [](GptSettings& settings) -> GptSettings& { return settings; };
  auto data = table.section<GptSettings>("data", itself);
  data.add("tokenizer", &GptSettings::tokenizer, "", "For text: one token a character, or a byte.")
      .one_of({"char", "byte"});
  data.add("val_fraction", &GptSettings::val_fraction, "",
           "Part at the end of a text that is kept for validation when it is prepared.")
      .at_least(0)
      .below(1);
  add_blend_keys(
      table.section<BlendSection>("data", [](GptSettings& all) -> BlendSection& { return all; }));
  table.section("data", &GptSettings::model)
      .add("pack", &GptConfig::packed, "",
           "Conversations: as many in a row of block_size as go into it, first fit in the order of "
           "training. Attention stays within each, and learned positions begin anew, so that the "
           "loss is that of each alone; a sample is a row then.");
  auto train = table.section("train", &GptSettings::model);
  train
      .add("label_smoothing", &GptConfig::label_smoothing, "",
           "Share of each target given to all symbols of the vocabulary alike (Szegedy et al. "
           "2016). The training loss has it; the validation loss is the plain cross-entropy.")
      .at_least(0)
      .below(1);
  auto eval = table.section<GptSettings>("eval", itself);
  eval.add("batches", &GptSettings::eval_batches, "global batches",
           "Validation batches of an evaluation, from the start. 0: all.")
      .at_least(0);
  eval.add("sample_tokens", &GptSettings::sample_tokens, "tokens",
           "Length of the text generated at each evaluation. 0: none.")
      .at_least(0);
  eval.add("sample_prompt", &GptSettings::sample_prompt, "", "What the text begins with.");
  eval.add("sample_temperature", &GptSettings::sample_temperature, "",
           "Divides the logits. 0: always the most likely token.")
      .at_least(0);
  eval.add("sample_top_k", &GptSettings::sample_top_k, "tokens",
           "Sample from the top k tokens only. 0: from all.")
      .at_least(0);
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

const KeySet& GptFamily::keys() const {
  static const KeyTable<GptSettings> kTable = [] {
    KeyTable<GptSettings> table;
    table.include<GptConfig>(decoder_keys(), "model",
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
  return gpt_of(deck);
}

std::int64_t& GptFamily::vocab_size(Deck& deck) const {
  return deck.families.of<GptSettings>().model.vocab_size;
}

}  // namespace choir
