// choir prepare audio MANIFEST ... --out DIR
#include <fmt/core.h>

#include "choir/app/prepare_audio.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/data/audio/prepare_audio.hpp"

namespace choir {

struct PrepareAudioCommand::Request {
  explicit Request(CommandLine own) : app(std::move(own)) {}

  CommandLine app;
  Arguments manifests;
  std::string out, channel, on_bad = "stop";
  PrepareAudioOptions options;
};

PrepareAudioCommand::PrepareAudioCommand(CommandLine& prepare)
    : request_(std::make_unique<Request>(prepare.add_subcommand(
          "audio", "manifests of speech (NeMo, Lhotse) to packed audio; ranks share the work"))) {
  Request& r = *request_;
  r.app
      .add_option("manifests", r.manifests,
                  "NeMo's JSON lines (also tarred: manifest__OP_0..N_CL_.json), Lhotse's cuts "
                  "(JSON lines, .gz), folders of Lhotse Shar")
      .required();
  r.app.add_option("--out", r.out, "the folder to write; a killed run is continued").required();
  r.app.add_option("--sample-rate", r.options.sample_rate, "hertz; audio of others is resampled")
      .shows_default();
  r.app.add_option("--channel", r.channel,
                   "average, or a number from 0: for audio of several channels where the manifest "
                   "names none");
  r.app.add_flag("--trim-to-supervisions", r.options.manifest.trim_to_supervisions,
                 "an utterance a supervision, not a cut");
  r.app.add_option("--tars", r.options.manifest.tars,
                   "tars of a tarred NeMo manifest (audio__OP_0..N_CL_.tar), once for each "
                   "manifest; by default the manifest's name with audio and .tar");
  r.app.add_option("--shard-minutes", r.options.shard_minutes, "audio in one shard")
      .shows_default();
  r.app
      .add_option("--on-bad", r.on_bad,
                  "stop: at the first bad utterance (exit code 3); skip: leave them out, and say "
                  "which")
      .one_of({"stop", "skip"})
      .shows_default();
  r.app.add_option("--bad-cap", r.options.bad_cap, "share of utterances that skip may leave out")
      .shows_default();
}

PrepareAudioCommand::~PrepareAudioCommand() = default;

bool PrepareAudioCommand::chosen() const {
  return request_->app.parsed();
}

int PrepareAudioCommand::run() const {
  return with_mpi([&](MpiSession& session) {
    const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
    PrepareAudioOptions options = request_->options;
    std::string folder = request_->out;
    together(mesh->world(), [&] {
      options.channel = channel_choice_of(request_->channel);
      options.stop_on_bad = request_->on_bad == "stop";
      while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    });
    Logger log(session.rank() == 0);
    log.to_stdout();
    const auto summary = prepare_audio(mesh->world(), log, request_->manifests, folder, options);
    if (session.rank() == 0) fmt::print("{}\n", summary.to_string());
    return 0;
  });
}

}  // namespace choir
