# plainsong from source. Not run by us: no Mac has been touched. How to use it and how to take it away: packaging/README.md.
class Plainsong < Formula
  desc "Server for 4-bit mixture-of-experts models, the same bytes alone and in company"
  homepage "https://example.invalid/plainsong" # placeholder: there is no home page yet
  # Placeholder: there is no release yet. Both lines change together with the first one.
  url "https://example.invalid/plainsong/archive/refs/tags/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"
  head "https://example.invalid/plainsong.git", branch: "main" # placeholder: your clone's path does as well

  depends_on "jansson"
  depends_on "libmicrohttpd"
  depends_on macos: :sonoma
  depends_on "pcre2"
  depends_on "python@3.13"
  depends_on "utf8proc"

  def install
    system "make", "CC=#{ENV.cc}", "all"
    system "make", "CC=#{ENV.cc}", "install", "PREFIX=#{prefix}"

    # Chat templates are rendered by jinja2, in an environment that no upgrade of Python's other packages changes.
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", libexec/"venv"
    system libexec/"venv/bin/pip", "install", "--quiet", "jinja2>=3.1,<4"

    # The program finds its model in ../share beside it; who has set PLAINSONG_PYTHON keeps it.
    (libexec/"bin").install bin/"plainsong"
    (libexec/"share").install_symlink share/"plainsong"
    (bin/"plainsong").write_env_script libexec/"bin/plainsong",
      PLAINSONG_PYTHON: "${PLAINSONG_PYTHON:-#{libexec}/venv/bin/python3}"
  end

  def caveats
    <<~EOS
      A model larger than the GPU may wire is refused with the line that raises the limit, as in
        sudo sysctl iogpu.wired_limit_mb=26000
      It holds until the next start of the machine.
    EOS
  end

  service do
    run [opt_bin/"plainsong", "serve", "--port", "8080"]
    keep_alive successful_exit: false
    process_type :interactive
    log_path var/"log/plainsong.log"
    error_log_path var/"log/plainsong.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/plainsong --version")
    assert_match "as frozen", shell_output("#{bin}/plainsong verify --golden")
    assert_equal "348 + 275 = 623.\n", shell_output("#{bin}/plainsong run -p 'What is 348 + 275?'")
  end
end
