<?php
// A fenced write to a database: the row remembers the largest fence, so a writer that was paused and lost its lock
// cannot overwrite its successor.
//
// Run it beside a daemon (`tenure serve`). It prints:
//
//     A writes with its fence: stored
//     A is paused, and its lease ends
//     B writes with a larger fence: stored
//     A wakes up and writes with its old fence: refused
//     the balance is B's

declare(strict_types=1);

require __DIR__ . '/../../clients/php/Tenure.php';

const PATH = 'account:/fenced/7';
$client = new Tenure\Client(getenv('TENURE_WEB_URL') ?: 'http://127.0.0.1:8443');
$database = new PDO('sqlite::memory:');
$database->exec('create table account (id integer primary key, balance text, fence integer not null default 0)');
$database->exec('insert into account (id) values (7)');

/** One statement checks the fence and writes: there is no moment between the two. */
function write(PDO $database, int $fence, string $balance): string
{
    $statement = $database->prepare('update account set balance = ?, fence = ? where id = 7 and fence <= ?');
    $statement->execute([$balance, $fence, $fence]);
    return $statement->rowCount() === 1 ? 'stored' : 'refused';
}

$a = $client->lock(PATH, ttl: 1);
echo 'A writes with its fence: ', write($database, $a->fence, "A's"), "\n";
// A does not renew. Another process would wait here; B gets the lock when the lease has ended.
$b = $client->lock(PATH, wait: 30);
echo "A is paused, and its lease ends\n";
echo 'B writes with a larger fence: ', write($database, $b->fence, "B's"), "\n";
echo 'A wakes up and writes with its old fence: ', write($database, $a->fence, "A's again"), "\n";
echo 'the balance is ', $database->query('select balance from account')->fetchColumn(), "\n";
$b->release();
