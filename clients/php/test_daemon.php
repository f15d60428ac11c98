<?php
// A real daemon for tests.

declare(strict_types=1);

final class TestDaemon
{
    public string $web = '';
    private string $data;
    /** @var resource */
    private $process;

    /** @param array<string, string> $environment */
    public function __construct(private readonly array $environment = [])
    {
        $this->data = sys_get_temp_dir() . '/tenure-php-' . bin2hex(random_bytes(8));
        $this->start('127.0.0.1:0');
    }

    public function __destruct()
    {
        proc_terminate($this->process, 9);
        proc_close($this->process);
        exec('rm -rf ' . escapeshellarg($this->data));
    }

    /** Kills the daemon and starts it again on the same port. */
    public function restart(): void
    {
        proc_terminate($this->process, 9);
        proc_close($this->process);
        $this->start(substr($this->web, strlen('http://')));
    }

    private function start(string $web): void
    {
        $target = getenv('CARGO_TARGET_DIR') ?: __DIR__ . '/../../target';
        $binary = getenv('TENURE_BIN') ?: "$target/debug/tenure";
        $environment = $this->environment + [
            'TENURE_DATA_DIR' => $this->data, 'TENURE_LISTEN' => '127.0.0.1:0', 'TENURE_WEB_LISTEN' => $web,
            'TENURE_H3_LISTEN' => '127.0.0.1:0', 'TENURE_GROUP_COUNT' => '4', 'PATH' => (string) getenv('PATH'),
        ];
        $this->process = proc_open([$binary, 'serve'], [1 => ['file', '/dev/null', 'w'], 2 => ['pipe', 'w']], $pipes, null, $environment);
        while (($line = fgets($pipes[2])) !== false) {
            if (preg_match('/ready.*web ([^,\s]+)/', $line, $found)) {
                $this->web = "http://$found[1]";
                return;
            }
        }
        throw new RuntimeException("the daemon does not start: $binary");
    }
}
