// choir prepare text FILE|DIR ... --out DIR, and the table of its sisters
#include <fmt/core.h>

#include "choir/app/prepare_audio.hpp"
#include "choir/app/prepare_commands.hpp"
#include "choir/app/session.hpp"
#include "choir/data/tokens/prepare_text.hpp"

namespace choir {

int prepare_command(const Arguments& arguments) {
  CommandLine app("Turns data into the form that training reads.", "choir prepare");
  app.require_subcommand();
  CommandLine text = app.add_subcommand("text", "UTF-8 text to token files and a vocabulary");
  Arguments paths;
  std::string out, tokenizer = "char";
  PrepareOptions options;
  text.add_option("paths", paths, "files, or folders (read recursively, sorted)").required();
  text.add_option("--out", out, "the folder to write").required();
  text.add_option("--tokenizer", tokenizer, "char or byte");
  text.add_option("--train-fraction", options.train_fraction, "the rest validates")
      .within(0.0, 1.0);
  text.add_option("--tokens-per-shard", options.tokens_per_shard, "tokens in one file");
  const PrepareAudioCommand audio(app);
  PrepareAction chosen;
  add_prepare_tokenizer(app, chosen);
  add_prepare_tokens(app, chosen);
  add_prepare_corpus(app, chosen);
  if (const auto code = parse(app, arguments)) return *code;
  if (audio.chosen()) return audio.run();
  if (chosen) return chosen();
  return without_mpi([&] {
    options.tokenizer = tokenizer_kind_of(tokenizer);
    fmt::print("{}\n", prepare_text(paths, out, options).to_string());
    return 0;
  });
}

}  // namespace choir
