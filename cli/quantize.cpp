#include <fmt/core.h>

#include <memory>

#include "commands.hpp"
#include "model/quantized_weights.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

struct QuantizeOptions {
  std::string model, output;
};

}  // namespace

void add_quantize(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command = app.add_subcommand("quantize", "Write a checkpoint in the official fp8/fp4 format");
  command->footer(
      "Linear layers become e4m3 with one power-of-two scale per 128 x 128 block, routed experts e2m1 with one per 32\n"
      "inputs; the rest is copied. The result is an ordinary model folder.");
  add_model(command, options->model);
  command->add_option("--output", options->output, "Folder to write; made if missing")
      ->required()
      ->check(CLI::Validator(check_path, ""))
      ->type_name("DIR");
  command->callback([options] {
    model::quantize_checkpoint(options->model, options->output);
    print_err("wrote {}\n", options->output);
  });
}

}  // namespace tamis::cli
