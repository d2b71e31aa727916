#include "choir/data/tokens/token_reader.hpp"

#include "choir/core/error.hpp"
#include "src/data/tokens/readers.hpp"

namespace choir {
namespace {

std::unique_ptr<TokenReader> make_plain_reader(const ReaderSetup& setup) {
  switch (setup.options.kind) {
    case ReaderKind::own:
      return make_own_reader(setup);
    case ReaderKind::collective:
      return make_collective_reader(setup);
    case ReaderKind::scatter:
      return make_scatter_reader(setup);
    case ReaderKind::node:
      return make_node_reader(setup);
  }
  return nullptr;
}

}  // namespace

ReaderKind reader_kind_of(std::string_view name) {
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node})
    if (name == name_of(kind)) return kind;
  throw DeckError(fmt::format("unknown reader '{}'", name), "own, collective, scatter or node");
}

std::string_view name_of(ReaderKind kind) {
  switch (kind) {
    case ReaderKind::own:
      return "own";
    case ReaderKind::collective:
      return "collective";
    case ReaderKind::scatter:
      return "scatter";
    case ReaderKind::node:
      return "node";
  }
  return "?";
}

Preload preload_of(std::string_view name) {
  if (name == "none") return Preload::none;
  if (name == "host") return Preload::host;
  if (name == "device") return Preload::device;
  throw DeckError(fmt::format("unknown preload '{}'", name), "none, host or device");
}

void check_request(const ReaderSetup& setup, std::span<const TokenExtent> extents) {
  std::int64_t tokens = 0;
  for (const auto& extent : extents) tokens += extent.count;
  CHOIR_CHECK(std::ssize(extents) <= setup.max_extents &&
                  static_cast<std::size_t>(tokens * setup.stream.token_bytes()) <= setup.limit,
              "{} extents with {} tokens, announced were {} and {} bytes", extents.size(), tokens,
              setup.max_extents, setup.limit);
}

std::unique_ptr<TokenReader> make_reader(Communicator& comm, const TokenStream& stream,
                                         const ReaderOptions& options, std::int64_t max_tokens,
                                         std::int64_t max_extents) {
  const ReaderSetup setup{comm, stream, options,
                          static_cast<std::size_t>(max_tokens * stream.token_bytes()), max_extents};
  return options.preload == Preload::none ? make_plain_reader(setup) : make_preloaded_reader(setup);
}

}  // namespace choir
