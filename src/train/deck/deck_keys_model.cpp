#include "choir/nn/feed_forward.hpp"
#include "deck_tables.hpp"

namespace choir::deck {
namespace {

// Far above any model: a slip of the finger is refused at once, and sizes multiply without
// overflow.
constexpr double kMostLayers = 10'000;
constexpr double kMostWidth = 1 << 20;
constexpr double kMostTokens = 1 << 30;  // BLAS counts rows and columns with 32 bits

}  // namespace

void add_run_keys(Table& table) {
  auto run = table.section("run", &Deck::run);
  run.add("dir", &RunSection::dir, "path", "Directory of the run. Empty: runs/<run.name>.");
  run.add("name", &RunSection::name, "", "Name of the run. Empty: the name of the deck file.")
      .checked("no '/', not \".\" or \"..\"", [](const KeyValue& value) -> std::string {
        const auto& name = std::get<std::string>(value);
        if (name == "." || name == "..") return "would lead out of runs/";
        return name.find('/') == name.npos ? "" : "a name holds no '/'; set run.dir for a path";
      });
  run.add("seed", &RunSection::seed, "",
          "Seed of every random number: initialisation, dropout, data order, samples.")
      .at_least(0);
  run.add("walltime", &RunSection::walltime, "seconds",
          "Time the job has; shortly before its end the run saves and stops with exit code 75. 0: "
          "no limit.")
      .in_seconds()
      .at_least(0);
  run.add("walltime_margin", &RunSection::walltime_margin, "seconds",
          "How long before the end of run.walltime the last save begins.")
      .in_seconds()
      .at_least(0);
}

void add_model_keys(Table& table) {
  auto model = table.section("model", &Deck::model);
  model.add("type", &ModelSection::type, "", "Family of the model.")
      .one_of({"gpt", "fastconformer"});

  auto gpt =
      table.section<GptConfig>("model", [](Deck& deck) -> GptConfig& { return deck.model.gpt; });
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
  gpt.add("tile", &GptConfig::tile, "",
          "Memory-centric tiling: the feed-forward layer of each block is run in so many tiles of "
          "ffn_width, each with a bucket of parameters of its own; with parallel.zero = 3 only one "
          "tile and those gathered ahead are whole. Divides ffn_width / parallel.tensor. Sums are "
          "in another order, nothing else changes, also no checkpoint.")
      .at_least(1)
      .at_most(FeedForward::kMostTiles);
  gpt.add("bias", &GptConfig::bias, "", "Biases in linear layers and LayerNorm.");
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
  gpt.add("attention", &GptConfig::attention, "",
          "Attention kernel: own, or cuDNN's on device cuda (an error where it refuses the shape); "
          "auto takes cuDNN where it can.")
      .one_of({"auto", "own", "cudnn"});
}

void add_data_keys(Table& table) {
  auto data = table.section("data", &Deck::data);
  data.add("train", &DataSection::train, "paths",
           "Files or folders of training data; a text file is tokenised on first use.");
  data.add("val", &DataSection::val, "paths",
           "The same for validation. Empty: the validation part made when a text is prepared.");
  data.add("format", &DataSection::format, "",
           "auto looks at the first file; synthetic draws random tokens and reads nothing.")
      .one_of({"auto", "text", "native", "nanogpt", "megatron", "synthetic"});
  data.add("tokenizer", &DataSection::tokenizer, "", "For text: one token a character, or a byte.")
      .one_of({"char", "byte"});
  data.add("val_fraction", &DataSection::val_fraction, "",
           "Part at the end of a text that is kept for validation when it is prepared.")
      .at_least(0)
      .below(1);
  data.add("reader", &DataSection::reader, "",
           "own: each rank reads its slice. collective: MPI_File_read_at_all. scatter: a few ranks "
           "read "
           "large blocks and scatter them. node: one rank a node fills shared memory.")
      .one_of({"own", "collective", "scatter", "node"});
  data.add(
      "hints", &DataSection::hints, "",
      "MPI-IO hints, as striping_factor or cb_nodes; echoed with what the system made of them.");
  data.add("preload", &DataSection::preload, "", "Keep the whole data set in memory.")
      .one_of({"none", "host", "device"});
  data.add("readers_every", &DataSection::readers_every, "ranks",
           "For scatter: one reader in so many ranks. 0: one a node.")
      .at_least(0);
  data.add("prefetch", &DataSection::prefetch, "micro-batches",
           "Batches read ahead by a background thread. 0: read when needed.")
      .at_least(0)
      .at_most(64);
}

}  // namespace choir::deck
