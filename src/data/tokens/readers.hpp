#pragma once
// What the four readers and the preloading one share, and their constructors. See token_reader.hpp.
#include <memory>

#include "choir/data/tokens/token_reader.hpp"
#include "src/data/tokens/mpi_files.hpp"
#include "src/data/tokens/mpi_group.hpp"

namespace choir {

/// Everything a reader is made of. `limit`: bytes one rank may ask for at once.
struct ReaderSetup {
  Communicator& comm;
  const TokenStream& stream;
  ReaderOptions options;
  std::size_t limit = 0;
  std::int64_t max_extents = 0;
};

/// Throws unless the request stays within what was announced.
void check_request(const ReaderSetup& setup, std::span<const TokenExtent> extents);

std::unique_ptr<TokenReader> make_own_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_collective_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_scatter_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_node_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_preloaded_reader(const ReaderSetup& setup);

}  // namespace choir
