// choir prepare codes CODEC_RUN FOLDER ...
#include <fmt/core.h>

#include <memory>

#include "choir/comm/agreement.hpp"
#include "choir/core/printable.hpp"
#include "choir/data/codes/prepare_codes.hpp"
#include "choir/models/codec/codec_voice.hpp"
#include "src/app/codec_run.hpp"
#include "src/app/prepare_command.hpp"

namespace choir {
namespace {

struct CodesRequest {
  CodecRunRequest run;
  Arguments folders;
  std::string name = "codec";
};

int make_codes(MpiSession& session, const CodesRequest& request) {
  CodecRun run(session, request.run);
  CodecDescription codec;
  together(run.world(), [&] { codec = describe(run.coder()); });
  Logger log(session.rank() == 0);
  log.to_stdout();
  for (const std::string& folder : request.folders) {
    const auto summary = prepare_codes(run.world(), log, folder, request.name, codec,
                                       [&](std::span<const std::int16_t> audio) {
                                         return stored_codes(run.coder().encode(audio));
                                       });
    if (session.rank() == 0) print_safely("{}\n", summary.to_string());
  }
  return 0;
}

}  // namespace

void add_prepare_codes(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<CodesRequest>();
  CommandLine app = prepare.add_subcommand(
      "codes", "encode packed audio with a codec, for models that speak; the ranks share the work");
  add_codec_run(app, request->run);
  app.add_option("folders", request->folders, "folders of `choir prepare audio`").required();
  app.add_option("--name", request->name, "name of the codes, codes.NAME.bin").shows_default();
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) { return make_codes(session, *request); });
  });
}

}  // namespace choir
