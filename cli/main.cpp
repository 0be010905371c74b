#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "commands.hpp"
#include "output.hpp"
#include "tamis/status.hpp"

namespace {

void complain(const std::string& text) { tamis::cli::print_err("tamis: {}\n", tamis::cli::one_line(text)); }

// " (commands: ...; see tamis bench --help)", for the command that was being read.
std::string where_help_is(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  std::string commands;
  for (const CLI::App* known : command->get_subcommands([](const CLI::App*) { return true; })) {
    if (known->get_name().empty()) continue;  // a group of options
    commands += (commands.empty() ? "commands: " : ", ") + known->get_name();
  }
  return " (" + commands + (commands.empty() ? "" : "; ") + "see " + name + " --help)";
}

}  // namespace

int main(int argc, char** argv) {
  tamis::cli::reserve_standard_streams();
  CLI::App app{
      "tamis: DeepSeek's sparse attention, exact and reproducible.\n"
      "Runs DeepSeek-V4 checkpoints through its own compressor, indexer, top-k and sparse attention.\n\n"
      "First steps (from the source folder):\n"
      "  tamis generate --model models/tiny-v4 --prompt 'The code of amber is 482913. The code of amber is '\n"
      "  tamis verify   --model models/tiny-v4 --golden models/tiny-v4/golden.safetensors\n"
      "  tamis recall   --model models/tiny-v4 --lengths 512,2048 --topk 16"};
  app.name("tamis");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tamis " TAMIS_VERSION);
  app.footer(
      "Exit codes: 0 success, 1 a finding (a comparison that failed), 2 wrong usage or input.\n"
      "`tamis COMMAND --help` explains a command.");
  int exit_code = 0;
  tamis::cli::add_generate(app, exit_code);
  tamis::cli::add_verify(app, exit_code);
  tamis::cli::add_recall(app, exit_code);
  tamis::cli::add_quantize(app, exit_code);
  tamis::cli::add_bench(app, exit_code);
  tamis::cli::add_replay(app, exit_code);
  tamis::cli::add_explain(app, exit_code);
  tamis::cli::add_info(app, exit_code);
  try {
    // CLI11 would only say that a command is required.
    const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
    const auto named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && std::none_of(commands.begin(), commands.end(), named)) {
      complain("there is no command " + std::string(argv[1]) + where_help_is(app));
      return 2;
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help and --version
      std::ostringstream text;
      app.exit(success, text, text);
      tamis::cli::write_out(text.str());
    }
    tamis::cli::flush_out();
    return exit_code;
  } catch (const CLI::ExtrasError&) {
    std::string text = "The following arguments were not expected:";  // CLI11's own text has them backwards
    for (const std::string& extra : app.remaining(true)) text += " " + extra;
    complain(text + where_help_is(app));
  } catch (const CLI::ParseError& error) {
    complain(std::string(error.what()) + where_help_is(app));
  } catch (const std::filesystem::filesystem_error& error) {
    complain(error.path1().string() + ": " + error.code().message());
  } catch (const std::bad_alloc&) {
    complain("out of memory");
  } catch (const std::length_error&) {  // a size that no container can have
    complain("out of memory");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return 2;
}
