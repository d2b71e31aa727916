// choir prepare dialogues MANIFEST... --out DIR
#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "choir/comm/agreement.hpp"
#include "choir/core/printable.hpp"
#include "choir/core/text.hpp"
#include "choir/data/dialogues/dialogue_form.hpp"
#include "choir/data/dialogues/prepare_dialogues.hpp"
#include "src/app/prepare_command.hpp"
#include "src/app/session.hpp"

namespace choir {
namespace {

struct DialoguesRequest {
  Arguments paths;
  std::string out, roles, on_bad = "stop";
  PrepareDialoguesOptions options;
};

/// Prepares a corpus: a folder for each of its manifests, all with the units of the first.
void make_corpus_of_dialogues(Communicator& world, Logger& log, const std::string& corpus,
                              const std::string& folder, PrepareDialoguesOptions options) {
  std::string list;
  together(world, [&] {
    if (world.rank() == 0) list = join(manifests_of_corpus(corpus), "\n");
  });
  broadcast_text(world, list);
  for (const std::string& manifest : split(list, '\n')) {
    const std::string stem = std::filesystem::path(manifest).stem().string();
    const auto summary = prepare_dialogues(world, log, {manifest}, folder + "/" + stem, options);
    if (world.rank() != 0) continue;
    print_safely("{}\n\n", summary.to_string());
    if (options.units.find('/') == std::string::npos)
      options.units =
          fmt::format("{}/tokenizer.{}.json", DialogueForm::user(summary.folder), summary.units);
  }
}

int make_dialogues(MpiSession& session, const DialoguesRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  Communicator& world = mesh->world();
  PrepareDialoguesOptions options = request.options;
  std::string folder = request.out;
  std::int64_t corpora = 0;
  together(world, [&] {
    options.stop_on_bad = request.on_bad == "stop";
    if (!request.roles.empty()) options.roles = DialogueRoles::parse(request.roles);
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (session.rank() != 0) return;
    for (const std::string& path : request.paths) {
      if (!std::filesystem::is_directory(path) || is_shar(path)) continue;
      if (++corpora > 1 || request.paths.size() > 1 || manifests_of_corpus(path).empty())
        throw DataError(fmt::format("'{}' is a folder, not a manifest", path),
                        "name manifests, folders of Lhotse Shar, or one folder of `choir prepare "
                        "corpus spoken-dialogues`");
    }
  });
  world.broadcast(&corpora, sizeof corpora, 0);
  Logger log(session.rank() == 0);
  log.to_stdout();
  if (corpora > 0) {
    make_corpus_of_dialogues(world, log, request.paths.front(), folder, options);
    return 0;
  }
  const auto summary = prepare_dialogues(world, log, request.paths, folder, options);
  if (session.rank() == 0) print_safely("{}\n", summary.to_string());
  return 0;
}

}  // namespace

void add_prepare_dialogues(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<DialoguesRequest>();
  CommandLine app = prepare.add_subcommand(
      "dialogues", "prepare recordings of a user and an agent, for full-duplex models");
  app.add_option("manifests", request->paths,
                 "Lhotse cuts (JSON lines, .gz) with target_audio or two channels; lines with "
                 "audio_filepath, target_audio_filepath and supervisions; Lhotse Shar folders with "
                 "such cuts; or the folder of a corpus of dialogues")
      .required();
  app.add_option("--out", request->out, "folder to write; an interrupted run is continued")
      .required();
  app.add_option("--roles", request->roles,
                 "roles of the manifest's speakers, user=NAME,agent=NAME (several: NAME|NAME); "
                 "default: user, and agent or assistant");
  app.add_option("--units", request->options.units,
                 "units of the agent's text: char, bpe_SIZE or unigram_SIZE, trained on that text; "
                 "or a tokenizer file")
      .shows_default();
  app.add_option("--pad", request->options.pad,
                 "unit id for silence; default: a new id after the units");
  app.add_option("--bos", request->options.bos,
                 "unit id for the beginning of a turn; default: a new id");
  app.add_option("--eos", request->options.eos, "unit id for the end of a turn; default: a new id");
  app.add_option("--sample-rate", request->options.sample_rate,
                 "sample rate in Hz; other audio is resampled")
      .shows_default();
  app.add_option("--shard-minutes", request->options.shard_minutes, "minutes of audio per shard")
      .shows_default();
  app.add_option("--on-bad", request->on_bad,
                 "stop: end at the first bad dialogue (exit code 3); skip: leave bad dialogues out "
                 "and list them")
      .one_of({"stop", "skip"})
      .shows_default();
  app.add_option("--bad-cap", request->options.bad_cap,
                 "largest fraction of dialogues that skip may leave out")
      .shows_default();
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) { return make_dialogues(session, *request); });
  });
}

}  // namespace choir
